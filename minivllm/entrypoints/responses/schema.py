"""Wire types of `/v1/responses`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from minivllm.entrypoints.openai.shared_schema import MAX_ID_LENGTH, Bool, GenerationRequest, Int

Item = dict[str, Any]  # of the input or the output
_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


class TextFormat(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: Bool | None = None


class TextConfig(BaseModel):
    model_config = ConfigDict(extra="allow")

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(BaseModel):
    model_config = ConfigDict(extra="allow")

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # the older name
    mode: Literal["standard"] | None = None


class ToolDefinition(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Bool | None = None
    format: dict[str, Any] | None = None


class ResponsesRequest(GenerationRequest):
    """None means "not given"; of the inherited fields, `codec` refuses those that belong to other APIs."""

    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    include: list[str] | None = None
    max_output_tokens: Int | None = None
    max_tool_calls: Annotated[Int, Field(ge=1)] | None = None  # of tools that run at the server, of which there are none
    tools: list[ToolDefinition] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: Bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    top_logprobs: Annotated[Int, Field(ge=0)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: Bool | None = None
    metadata: Annotated[dict[_Key, _Value], Field(max_length=16)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseObject(TypedDict):
    id: str
    object: str
    created_at: int
    completed_at: int | None
    status: str  # "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
    background: bool
    error: dict[str, Any] | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None
    user: str | None


class Deleted(TypedDict):
    id: str
    object: str
    deleted: bool


class ItemList(TypedDict):
    object: str
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(TypedDict):
    object: str
    input_tokens: int
