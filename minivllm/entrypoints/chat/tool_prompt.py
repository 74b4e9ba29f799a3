"""Tools for models whose chat template does not know of them: told in the system message, calls and results as text.

Used by `ChatPrompts`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from minivllm.text.parsers.format import Layout


def without_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    layout: Layout,
    template: str,
) -> list[dict[str, Any]]:
    """Messages that say the same to a template without tools."""
    plain = [_plain(message, layout) for message in messages]
    if not tools:
        return plain
    text = _describe(tools, layout)
    # Templates print any role, or name those they know and refuse others.
    has_system = "raise_exception" not in template or ("system" in template and "System role not supported" not in template)
    roles = ("system", "developer") if has_system else ("user",)
    place = next((message for message in plain[:1] if message.get("role") in roles), None)
    if place is None:
        return [{"role": roles[0], "content": text}, *plain]
    content = place.get("content")
    if isinstance(content, list):
        place["content"] = [{"type": "text", "text": text}, *content]
    else:
        place["content"] = f"{content}\n\n{text}" if has_system else f"{text}\n\n{content}"
    return plain


def _plain(message: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    functions = [call["function"] for call in calls]
    written = layout.write_all([(function["name"], function["arguments"]) for function in functions])
    content = message.get("content") or ""
    if isinstance(content, str):
        content = f"{content}\n{written}" if content else written
    else:
        content = [*content, {"type": "text", "text": written}]
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}


def _describe(tools: Sequence[Mapping[str, Any]], layout: Layout) -> str:
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = layout.write_all([("name-of-the-tool", {"name-of-an-argument": "value"})])
    return (
        f"You can use these tools, each described by a JSON object:\n{lines}\n\n"
        f"To use a tool, answer with nothing but\n{example}\n"
        "You will then be told the result. Answer without tools where you need none."
    )
