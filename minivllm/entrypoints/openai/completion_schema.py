"""Wire types of `/v1/completions`."""

from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema
from typing_extensions import NotRequired, TypedDict

from minivllm.entrypoints.openai.shared_schema import MAX_PROMPTS, Bool, GenerationRequest, Int, Usage


def _prompts(value: Any, info: ValidationInfo) -> Any:
    """Any of the four forms of `prompt` as a list of texts and lists of token ids."""
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(item) is int for item in value)):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError("Input should be a string, a list of strings, a list of token ids or a list of such lists; not empty")
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"Input should have at most {MAX_PROMPTS} prompts, got {len(value)}")
    for index, item in enumerate(value):
        if isinstance(item, str) or (isinstance(item, list) and all(type(token) is int for token in item)):
            if not item and not info.data.get("suffix"):  # before the first word of a file there is nothing
                raise ValueError(f"prompt {index} is empty" if len(value) > 1 else "the prompt is empty")
        else:
            raise ValueError(f"item {index} is neither a string nor a list of token ids")
    return value


class CompletionRequest(GenerationRequest):
    suffix: str | None = None  # stands before `prompt`, whose check looks at it
    prompt: Annotated[
        Any,
        BeforeValidator(_prompts),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}},
                    {"type": "array", "items": {"type": "integer"}},
                    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                ]
            }
        ),
    ]
    echo: Bool | None = None
    logprobs: Int | None = None


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_logprobs: list[dict[str, Any] | None] | None
    prompt_token_ids: NotRequired[list[int]]
    token_ids: NotRequired[list[int]]


class Completion(TypedDict):
    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
    service_tier: str | None
    kv_transfer_params: NotRequired[dict[str, Any]]
