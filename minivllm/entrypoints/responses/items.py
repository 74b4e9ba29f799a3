"""Items of `/v1/responses`: checked and completed when they come in, and as messages for the chat template."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from minivllm.entrypoints.openai.shared_schema import MAX_ID_LENGTH
from minivllm.entrypoints.responses.schema import Item
from minivllm.errors import ClientError, NotFoundError

# Of the ids of items.
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text")
# In what order the items of one turn of the assistant may follow each other.
_ORDER = {"reasoning": 0, "message": 1, "function_call": 2, "custom_tool_call": 2}


def new_id(kind: str) -> str:
    return f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"


def read_input(given: str | list[Item], find: Callable[[str], Item | None]) -> tuple[list[Item], list[str]]:
    """The items in the form in which they are kept, and the ids that are new. `find`: a kept item by its id."""
    raw = [{"role": "user", "content": given}] if isinstance(given, str) else given
    read = [_read(item, f"input[{index}]", find) for index, item in enumerate(raw)]
    return read, [item["id"] for item, before in zip(read, raw, strict=True) if item["id"] != before.get("id")]


def check_outputs(history: Sequence[Item], items: Sequence[Item]) -> None:
    """Every output of a tool must belong to a call before it."""
    known = {item["call_id"] for item in history if item["type"] in _CALLS}
    for index, item in enumerate(items):
        if item["type"] in _CALLS:
            known.add(item["call_id"])
        elif item["type"] in _OUTPUTS and item["call_id"] not in known:
            call_id = item["call_id"][:MAX_ID_LENGTH]
            what = f"No tool call found for function call output with call_id {call_id!r}."
            raise ClientError(what, param=f"input[{index}].call_id")


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """What the assistant thought, said and called without anything in between becomes one message."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    last = None  # kind of the assistant's item before, if it is still its turn
    for item in items:
        kind = item["type"]
        if kind in _OUTPUTS:
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"])})
            last = None
        elif kind == "message" and item["role"] != "assistant":
            messages.append({"role": item["role"], "content": _text(item["content"])})
            last = None
        elif kind not in _CALLS or item.get("status") != "incomplete":  # half a call is not shown again
            if last is None or (_ORDER[kind] <= _ORDER[last] and kind not in _CALLS):
                messages.append({"role": "assistant", "content": ""})
            _join(messages[-1], item)
            last = kind
    return messages


def _join(message: dict[str, Any], item: Item) -> None:
    kind = item["type"]
    if kind == "message":
        message["content"] = _text(item["content"])
    elif kind == "reasoning":
        if thoughts := _text(item.get("content") or item["summary"]):
            message["reasoning_content"] = thoughts
    else:
        is_custom = kind == "custom_tool_call"
        arguments = {"input": item["input"]} if is_custom else item["arguments"]
        function = {"name": item["name"], "arguments": arguments}
        calls = message.setdefault("tool_calls", [])
        calls.append({"id": item["call_id"], "type": "function", "function": function})


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join([part.get("text") or part.get("refusal", "") for part in content])


def _read(item: Item, place: str, find: Callable[[str], Item | None]) -> Item:
    kind = item.get("type") or ("message" if "role" in item else "item_reference")
    if kind == "item_reference":
        item_id = _field(item, "id", place)
        found = find(item_id)
        if found is None:
            raise NotFoundError(f"Item with id {item_id[:MAX_ID_LENGTH]!r} not found.", param=f"{place}.id")
        return found
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise ClientError(f"Input items of type {str(kind)[:64]!r} are not supported by this server.", param=f"{place}.type")
    item_id = new_id(kind) if item.get("id") is None else _field(item, "id", place)
    if not 0 < len(item_id) <= MAX_ID_LENGTH:
        raise ClientError(f"The id of an item must have 1 to {MAX_ID_LENGTH} characters.", param=f"{place}.id")
    return {"id": item_id, "type": kind, **reader(item, place)}


def _message(item: Item, place: str) -> Item:
    role = item.get("role")
    if role not in _ROLES:
        raise ClientError(f"Unknown role {str(role)[:50]!r}: use one of {', '.join(_ROLES)}.", param=f"{place}.role")
    kind = "output_text" if role == "assistant" else "input_text"
    return {"role": role, "status": "completed", "content": _parts(item.get("content"), f"{place}.content", kind)}


def _parts(content: object, place: str, kind: str, kinds: Sequence[str] = _TEXTS) -> list[dict[str, Any]]:
    """Texts as parts of one kind; refusals stay."""
    if isinstance(content, str):
        content = [{"type": kind, "text": content}]
    if not isinstance(content, list):
        raise ClientError("Content must be a string or a list of parts.", param=place)
    parts: list[dict[str, Any]] = []
    for index, part in enumerate(content):
        given = part.get("type") if isinstance(part, dict) else None
        if given == "refusal" and kind == "output_text":
            parts.append({"type": "refusal", "refusal": _field(part, "refusal", f"{place}[{index}]")})
        elif given in kinds:
            made = {"type": kind, "text": _field(part, "text", f"{place}[{index}]")}
            parts.append(made | {"annotations": []} if kind == "output_text" else made)
        else:
            what = f"Content parts of type {str(given)[:50]!r} are not supported here: this model reads text only."
            raise ClientError(what, param=f"{place}[{index}]")
    return parts


def _reasoning(item: Item, place: str) -> Item:
    """Encrypted thoughts are nobody's here; they are left out."""
    summary = _parts(item.get("summary") or [], f"{place}.summary", "summary_text", ("summary_text",))
    content = _parts(item.get("content") or [], f"{place}.content", "reasoning_text", ("reasoning_text", "text"))
    return {"summary": summary, "content": content, "status": "completed"}


def _function_call(item: Item, place: str) -> Item:
    arguments = _field(item, "arguments", place)
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.MsgspecError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ClientError("The arguments of a function call must be a JSON object.", param=f"{place}.arguments")
    return {**_call(item, place), "arguments": arguments}


def _custom_tool_call(item: Item, place: str) -> Item:
    return {**_call(item, place), "input": _field(item, "input", place)}


def _call(item: Item, place: str) -> Item:
    return {"call_id": _field(item, "call_id", place), "name": _field(item, "name", place), "status": "completed"}


def _call_output(item: Item, place: str) -> Item:
    output = item.get("output")
    if not isinstance(output, str):
        output = _parts(output, f"{place}.output", "input_text")
    return {"call_id": _field(item, "call_id", place), "output": output, "status": "completed"}


def _field(item: Item, name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise ClientError(f"`{name}` must be a string.", param=f"{place}.{name}")
    return value


_READERS: dict[str, Callable[[Item, str], Item]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "custom_tool_call": _custom_tool_call,
    "function_call_output": _call_output,
    "custom_tool_call_output": _call_output,
}
