"""Wire types of `/v1/messages`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from minivllm.entrypoints.openai.shared_schema import MAX_ID_LENGTH, Bool, Float, Int, Words

Blocks = str | list[dict[str, Any]]


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: Literal["user", "assistant", "system"]
    content: Blocks


class Tool(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: Bool | None = None


class ToolChoice(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: Bool | None = None


class Thinking(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Int | None = None


class OutputFormat(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    model_config = ConfigDict(extra="allow")

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(BaseModel):
    """What makes the prompt."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    system: Blocks | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = Field(None, max_length=MAX_ID_LENGTH)


class MessagesRequest(CountRequest):
    max_tokens: Int = Field(ge=1)
    temperature: Float | None = None
    top_p: Float | None = None
    top_k: Int | None = None
    stop_sequences: Words = None
    stream: Bool | None = None
    seed: Int | None = None
    priority: Int | None = None
    timeout_ms: Annotated[Int, Field(ge=1)] | None = None
    # Accepted without effect.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None


class Usage(TypedDict):
    input_tokens: int  # without those from the cache
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessagesReply(TypedDict):
    id: str
    type: str
    role: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: Usage


class CountReply(TypedDict):
    input_tokens: int
