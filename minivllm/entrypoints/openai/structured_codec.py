"""Wire fields that say what form an answer must have → `StructuredOutputsParams`. What cannot be kept to is refused."""

from typing import Any, NoReturn

import msgspec

from minivllm.entrypoints.openai.shared_schema import GenerationRequest
from minivllm.errors import ClientError
from minivllm.messages.structured_outputs import StructuredOutputsParams

# Older names of vLLM, and what they are called now.
_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "structural_tag": "structural_tag",
}
_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
# How it is written, and for whom; of no meaning without one that says what.
_MANNERS = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")
_FIELDS = (*dict.fromkeys(_GUIDED.values()), *_MANNERS)


def decode(request: GenerationRequest) -> StructuredOutputsParams | None:
    """The one form that the request asks for, if it does. `ClientError` for two of them, and for one that nobody knows."""
    found = {name: value for name in _GUIDED if (value := getattr(request, name)) not in (None, False)}
    for name in ("response_format", "structured_outputs"):
        if getattr(request, name) is not None:
            found[name] = getattr(request, name)
    if _is_text(found.get("response_format")):
        del found["response_format"]
    if not found.get("structured_outputs", True):
        del found["structured_outputs"]
    if len(found) > 1:
        raise ClientError(f"Only one of {', '.join(found)} can be kept to; leave out the others.", param=next(reversed(found)))
    for name, value in found.items():
        if name == "response_format":
            return _from_response_format(value)
        if name == "structured_outputs":
            return _from_structured_outputs(value)
        manner = {"whitespace_pattern": request.guided_whitespace_pattern}
        return _make({_GUIDED[name]: value} | manner, name)
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


def _from_structured_outputs(value: dict[str, Any]) -> StructuredOutputsParams:
    unknown = [name[:50] for name, part in value.items() if name not in _FIELDS and part is not None]
    if unknown:
        raise ClientError(
            f"structured_outputs has no {unknown[0]!r}; it has {', '.join(_FIELDS)}.",
            param=f"structured_outputs.{unknown[0]}",
        )
    return _make(value, None)


def _from_response_format(value: dict[str, Any]) -> StructuredOutputsParams:
    kind = value.get("type")
    if kind not in _FORMATS:
        _refuse(f"type must be one of {', '.join(_FORMATS)}, not {str(kind)[:50]!r}.", "type")
    if kind == "structural_tag":
        return _make({"structural_tag": value}, "response_format")
    if kind == "json_object":
        schema = value.get("schema")  # as some servers have it
        return _make({"json_object": True} if schema is None else {"json": schema}, "response_format")
    wrapper = value.get("json_schema")
    if wrapper is None:
        _refuse("When response_format type is 'json_schema', the 'json_schema' field must be provided.", "json_schema", "")
    if not isinstance(wrapper, dict) or not isinstance(wrapper.get("schema"), (dict, bool)):
        _refuse("json_schema must be an object with a `schema`, which is an object.", "json_schema.schema")
    return _make({"json": wrapper["schema"]}, "response_format")


def _make(fields: dict[str, Any], origin: str | None) -> StructuredOutputsParams:
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(given | {"origin": origin}, StructuredOutputsParams)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ClientError):
            raise error.__cause__ from None
        field = origin or "structured_outputs"
        raise ClientError(f"{field}: {error}", param=field) from error


def _refuse(what: str, part: str, head: str = "response_format: ") -> NoReturn:
    raise ClientError(head + what, param=f"response_format.{part}")
