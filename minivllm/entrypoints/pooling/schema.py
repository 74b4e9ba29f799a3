"""Wire types of the routes of pooling models, with the fields of vLLM."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from typing_extensions import TypedDict

from minivllm.entrypoints.openai.chat_schema import ChatMessage
from minivllm.entrypoints.openai.shared_schema import MAX_ID_LENGTH, Bool, Int, Usage

MAX_INPUTS = 2048  # texts of one call, as in the OpenAI API


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _inputs(value: Any) -> Any:
    """Any of the four forms of `input` as a list of texts and lists of token ids."""
    if isinstance(value, str) or _is_ids(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError("Input should be a string, a list of strings, a list of token ids or a list of such lists; not empty")
    _check_count(value)
    for index, item in enumerate(value):
        if not isinstance(item, str) and not _is_ids(item):
            raise ValueError(f"item {index} is neither a string nor a list of token ids")
    return value


def _texts(value: Any) -> Any:
    """One text or several, each plain or {"text": …}."""
    given = value if isinstance(value, list) else [value]
    _check_count(given)
    texts = [item.get("text") if isinstance(item, dict) else item for item in given]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            what = f"item {index} is no text" if isinstance(value, list) else "Input should be a text or a list of texts"
            raise ValueError(what)
    return texts


def _check_count(value: list[Any]) -> None:
    if len(value) > MAX_INPUTS:
        raise ValueError(f"Input should have at most {MAX_INPUTS} items, got {len(value)}")


_TEXT = {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}]}
_MANY = {"type": "array", "maxItems": MAX_INPUTS}
Inputs = Annotated[
    Any,
    BeforeValidator(_inputs),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                _MANY | {"items": {"type": "string"}},
                _MANY | {"items": {"type": "integer"}},
                _MANY | {"items": {"type": "array", "items": {"type": "integer"}}},
            ]
        }
    ),
]
Texts = Annotated[Any, BeforeValidator(_texts), WithJsonSchema({"anyOf": [*_TEXT["anyOf"], _MANY | {"items": _TEXT}]})]


class PoolingRequestBase(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Int | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: Bool | None = None
    priority: Int | None = None
    timeout_ms: Annotated[Int, Field(ge=1)] | None = None  # from arrival
    cache_salt: str | None = Field(None, max_length=MAX_ID_LENGTH)
    request_id: str | None = Field(None, max_length=MAX_ID_LENGTH)


class ClassificationRequest(PoolingRequestBase):
    """Give `input` or `messages`."""

    input: Inputs | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: Bool | None = None  # default: true for an input, false for messages
    add_generation_prompt: Bool | None = None
    continue_final_message: Bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class EmbeddingRequest(ClassificationRequest):
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Int | None = None
    embed_dtype: Literal["float32"] = "float32"
    endianness: Literal["native", "little"] = "native"


class PoolingRequest(EmbeddingRequest):
    task: str | None = Field(None, max_length=MAX_ID_LENGTH)


class ScoreRequest(PoolingRequestBase):
    """Give one of the pairs of fields."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None


class RerankRequest(PoolingRequestBase):
    query: str
    documents: Texts
    top_n: Int | None = None


class Embedding(TypedDict):
    index: int
    object: str
    embedding: list[float] | str


class Pooling(TypedDict):
    index: int
    object: str
    data: list[float] | list[list[float]] | str


class Classification(TypedDict):
    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class Score(TypedDict):
    index: int
    object: str
    score: float


class _Reply(TypedDict):
    id: str
    object: str
    created: int
    model: str
    usage: Usage


class EmbeddingResponse(_Reply):
    data: list[Embedding]


class PoolingResponse(_Reply):
    data: list[Pooling]


class ClassificationResponse(_Reply):
    data: list[Classification]


class ScoreResponse(_Reply):
    data: list[Score]


class RerankDocument(TypedDict):
    text: str


class RerankResult(TypedDict):
    index: int
    document: RerankDocument
    relevance_score: float


class RerankUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class RerankResponse(TypedDict):
    id: str
    model: str
    usage: RerankUsage
    results: list[RerankResult]
