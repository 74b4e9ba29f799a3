"""Wire types of `/v1/chat/completions`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, WithJsonSchema
from typing_extensions import NotRequired, TypedDict

from minivllm.entrypoints.openai.shared_schema import Bool, GenerationRequest, Int, Usage

# Checked by `chat.prompt`, which names the part that is wrong.
Content = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "type": {"type": "string", "enum": ["text", "input_text", "output_text"]},
                            "text": {"type": "string"},
                        },
                        "required": ["type", "text"],
                    },
                },
                {"type": "null"},
            ]
        }
    ),
]


class ChatMessage(BaseModel):
    """Other fields (`name`, `tool_calls`, `reasoning`, …) are handed to the chat template as they are."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: Content = None


class FunctionDefinition(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Bool | None = None


class ToolDefinition(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["function"] = "function"
    function: FunctionDefinition


class ChatCompletionRequest(GenerationRequest):
    messages: list[ChatMessage]
    max_completion_tokens: Int | None = None
    logprobs: Bool | None = None
    top_logprobs: Int | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: Bool | None = None
    functions: list[FunctionDefinition] | None = None
    function_call: str | dict[str, Any] | None = None
    add_generation_prompt: Bool | None = None
    continue_final_message: Bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: Bool | None = None


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]


class CalledFunction(TypedDict):
    name: str
    arguments: str


class ToolCallMessage(TypedDict):
    id: str
    type: str
    function: CalledFunction


class ReplyMessage(TypedDict):
    role: str
    content: str | None
    refusal: str | None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallMessage]]
    function_call: NotRequired[CalledFunction]


class ChatChoice(TypedDict):
    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    service_tier: str | None
    prompt_logprobs: list[dict[str, Any] | None] | None
    prompt_token_ids: NotRequired[list[int]]
    kv_transfer_params: NotRequired[dict[str, Any]]
