"""Anthropic's messages and tools → those of `ChatRequest`."""

from collections.abc import Iterable
from typing import Any

import msgspec

from minivllm.entrypoints.anthropic.schema import Blocks, CountRequest, Message
from minivllm.entrypoints.chat.tool_choice import Tool, ToolUse, check_tools, choose
from minivllm.errors import ClientError


def chat_messages(body: CountRequest) -> list[dict[str, Any]]:
    """With the system prompt first. Results of tools become messages of their own."""
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _text(body.system, "system")})
    for index, message in enumerate(body.messages):
        where = f"messages[{index}].content"
        if message.role == "assistant":
            messages.append(_assistant(message, where))
        else:
            messages += _user(message, where)
    return messages


def tool_use(body: CountRequest) -> tuple[list[Tool], ToolUse | None]:
    """All tools, and which of them may be called."""
    tools = []
    for index, given in enumerate(body.tools or ()):
        if given.type not in (None, "custom"):
            what = f"Tools of type {given.type[:64]!r} run at Anthropic; this server has none."
            raise ClientError(what, param=f"tools[{index}].type")
        schema = given.input_schema
        tools.append(Tool(name=given.name, description=given.description, parameters=schema, strict=bool(given.strict)))
    check_tools(tools, part="")
    choice = body.tool_choice
    kind = choice.type if choice is not None else "auto"
    if not tools:
        if kind in ("any", "tool"):
            raise ClientError("`tool_choice` needs `tools`.", param="tool_choice")
        return tools, None
    if kind == "none":
        return tools, None
    if kind == "tool" and (choice is None or choice.name is None):
        raise ClientError('A `tool_choice` of type "tool" needs a `name`.', param="tool_choice.name")
    names = [choice.name] if choice is not None and kind == "tool" and choice.name else [tool.name for tool in tools]
    parallel = choice is None or not choice.disable_parallel_tool_use
    return tools, choose(tools, names, required=kind in ("any", "tool"), parallel=parallel)


def _assistant(message: Message, where: str) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}
    text, thoughts, calls = [], [], []
    for index, block in enumerate(message.content):
        kind, place = block.get("type"), f"{where}[{index}]"
        if kind == "text":
            text.append(_field(block, "text", str, place))
        elif kind == "thinking":
            thoughts.append(_field(block, "thinking", str, place))
        elif kind == "tool_use":
            function = {"name": _field(block, "name", str, place), "arguments": _field(block, "input", dict, place)}
            calls.append({"id": _field(block, "id", str, place), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise _unknown(kind, place)
    made: dict[str, Any] = {"role": "assistant", "content": "".join(text)}
    if thoughts:
        made["reasoning_content"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    return made


def _user(message: Message, where: str) -> Iterable[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results, parts = [], []
    for index, block in enumerate(message.content):
        kind, place = block.get("type"), f"{where}[{index}]"
        if kind == "text":
            parts.append({"type": "text", "text": _field(block, "text", str, place)})
        elif kind == "tool_result":
            results.append(_tool_result(block, place))
        else:
            raise _unknown(kind, place)
    return [*results, {"role": message.role, "content": parts}] if parts or not results else results


def _tool_result(block: dict[str, Any], place: str) -> dict[str, Any]:
    content = block.get("content")
    text = "" if content is None else _text(content, f"{place}.content")
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": _field(block, "tool_use_id", str, place), "content": text}


def _text(content: Blocks, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ClientError("Content must be a string or a list of blocks.", param=where)
    texts = []
    for index, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind != "text":
            raise _unknown(kind, f"{where}[{index}]")
        texts.append(_field(block, "text", str, f"{where}[{index}]"))
    return "\n".join(texts)


def _field(block: dict[str, Any], name: str, kind: type, place: str) -> Any:
    value = block.get(name)
    if not isinstance(value, kind):
        what = "a string" if kind is str else "an object"
        raise ClientError(f"`{name}` of this block must be {what}.", param=f"{place}.{name}")
    return value


def _unknown(kind: object, place: str) -> ClientError:
    return ClientError(f"Content blocks of type {str(kind)[:50]!r} are not supported here.", param=place)


def parsed_arguments(text: str) -> dict[str, Any]:
    """The `input` of a call; empty if the answer was cut off within it."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
