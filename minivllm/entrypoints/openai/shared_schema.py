"""Wire types that the OpenAI endpoints share: the fields of any generating request, usage, errors."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from typing_extensions import NotRequired, TypedDict

MAX_N = 1024  # choices of one prompt
MAX_PROMPTS = 1024  # prompts of one call
MAX_SEQUENCES = 4096  # choices of all prompts of one call
MAX_STOPS = 16
MAX_BAD_WORDS = 128
MAX_LOGIT_BIAS = 1024
MAX_ID_LENGTH = 128  # request_id, cache_salt


_JSON_NAMES = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number with a fraction",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _number(value: object) -> object:
    # pydantic would read "10" and true as numbers; the API does not.
    if isinstance(value, (str, bool)):
        raise ValueError(f"Input should be a number, not {_JSON_NAMES[type(value)]}")
    return value


def _list_of(kind: type, what: str, limit: int | None = None) -> Callable[[Any], Any]:
    """A check of a plain list, with one error that says which item is wrong; far cheaper than pydantic on long lists."""

    def check(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            raise ValueError(f"Input should be a list of {what}")
        if limit is not None and len(value) > limit:
            raise ValueError(f"Input should have at most {limit} items, got {len(value)}")
        for index, item in enumerate(value):
            if type(item) is not kind:
                raise ValueError(f"Input should be a list of {what}, but item {index} is {_JSON_NAMES.get(type(item))}")
        return value

    return check


def _stop(value: Any) -> Any:
    return _list_of(str, "strings", MAX_STOPS)([value] if isinstance(value, str) else value)


def _json(**schema: Any) -> WithJsonSchema:
    return WithJsonSchema(schema)


_TEXT = {"type": "string", "minLength": 1}
Int = Annotated[int, BeforeValidator(_number), Field(ge=-(2**63), lt=2**63)]
Float = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Bool = Annotated[bool, Field(strict=True)]
TokenIds = Annotated[
    Any, BeforeValidator(_list_of(int, "token ids")), _json(type=["array", "null"], items={"type": "integer", "minimum": 0})
]
Stop = Annotated[
    Any,
    BeforeValidator(_stop),
    _json(anyOf=[_TEXT, {"type": "array", "items": _TEXT, "maxItems": MAX_STOPS}, {"type": "null"}]),
]
Words = Annotated[
    Any,
    BeforeValidator(_list_of(str, "strings", MAX_BAD_WORDS)),
    _json(type=["array", "null"], items=_TEXT, maxItems=MAX_BAD_WORDS),
]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow")

    include_usage: Bool | None = None
    continuous_usage_stats: Bool | None = None


class GenerationRequest(BaseModel):
    """Fields of both chat and text completions; ranges are checked by `SamplingParams`. None means "not given"."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None
    temperature: Float | None = None
    top_p: Float | None = None
    top_k: Int | None = None
    min_p: Float | None = None
    presence_penalty: Float | None = None
    frequency_penalty: Float | None = None
    repetition_penalty: Float | None = None
    max_tokens: Int | None = None
    min_tokens: Int | None = None
    n: Int | None = None
    seed: Int | None = None
    stop: Stop = None
    stop_token_ids: TokenIds = None
    allowed_token_ids: TokenIds = None
    bad_words: Words = None
    logit_bias: dict[str, Float] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_json_object: Bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None  # accepted without effect: there is one
    structural_tag: str | dict[str, Any] | None = None
    prompt_logprobs: Int | None = None
    ignore_eos: Bool | None = None
    skip_special_tokens: Bool | None = None
    spaces_between_special_tokens: Bool | None = None
    include_stop_str_in_output: Bool | None = None
    add_special_tokens: Bool | None = None
    truncate_prompt_tokens: Int | None = None
    stream: Bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: Bool | None = None
    return_tokens_as_token_ids: Bool | None = None
    priority: Int | None = None
    cache_salt: str | None = Field(None, max_length=MAX_ID_LENGTH)
    timeout_ms: Annotated[Int, Field(ge=1)] | None = None  # from arrival; then it ends with what it has
    request_id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    kv_transfer_params: dict[str, Any] | None = None  # of `KVTransferParams`, which the engine checks
    # Accepted without effect: they ask for nothing that changes the text.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: Bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class Rendered(TypedDict):
    request_id: str
    model: str
    prompt: str | None
    token_ids: list[int]
    sampling_params: dict[str, Any]
    stream: bool
    stream_options: dict[str, Any] | None
    cache_salt: str | None
    priority: int


class ErrorObject(TypedDict):
    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(TypedDict):
    error: ErrorObject


ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
