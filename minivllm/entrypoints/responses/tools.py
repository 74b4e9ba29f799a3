"""Tools and tool choice of `/v1/responses` → `Tool`s and `ToolUse`."""

from collections.abc import Sequence
from typing import Any

from minivllm.entrypoints.chat.tool_choice import Tool, ToolUse, check_tools, choose
from minivllm.entrypoints.responses.schema import ResponsesRequest, ToolDefinition
from minivllm.errors import ClientError

KINDS = ("function", "custom")
# What a model calls a custom tool with: one text.
_CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], "additionalProperties": False}


def decode(body: ResponsesRequest) -> tuple[list[Tool], ToolUse | None]:
    """The tools to show to the model, and which of them it may call (None: none)."""
    given = body.tools or []
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(given)]
    check_tools(tools, part="")
    choice = body.tool_choice
    if choice == "none" or (not tools and choice in (None, "auto")):
        return [], None  # a model that sees tools calls them
    if not tools:
        raise ClientError("When using `tool_choice`, `tools` must be set.", param="tool_choice")
    parallel = body.parallel_tool_calls is not False
    if choice in (None, "auto", "required"):
        every = [tool.name for tool in tools]
        return tools, choose(tools, every, required=choice == "required", parallel=parallel)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed, mode = choice.get("tools"), choice.get("mode")
        names = [_name(tool, given) for tool in allowed] if isinstance(allowed, list) else []
        if mode not in ("auto", "required") or not names:
            message = '`tool_choice` of type "allowed_tools" needs a `mode` and a list of `tools`.'
            raise ClientError(message, param="tool_choice")
        return tools, choose(tools, names, required=mode == "required", parallel=parallel)
    return tools, choose(tools, [_name(choice, given)], required=True, parallel=parallel)


def shown(body: ResponsesRequest) -> tuple[list[dict[str, Any]], str | dict[str, Any]]:
    """Tools and choice as the response tells them: what was understood of them."""
    fields = {"function": {"type", "name", "description", "parameters", "strict"}, "custom": {"type", "name", "description"}}
    given = [tool.model_dump(include=fields[tool.type]) for tool in body.tools or ()]
    choice = body.tool_choice
    if not isinstance(choice, dict):
        return given, choice or "auto"
    if choice["type"] != "allowed_tools":
        return given, _shown_name(choice)
    return given, {"type": "allowed_tools", "mode": choice["mode"], "tools": [_shown_name(tool) for tool in choice["tools"]]}


def _shown_name(choice: dict[str, Any]) -> dict[str, Any]:
    return {"type": choice["type"], "name": choice["name"]}


def _tool(given: ToolDefinition, place: str) -> Tool:
    if given.type not in KINDS:
        what = f"Tools of type {given.type[:64]!r} run at OpenAI; this server has only those of type function and custom."
        raise ClientError(what, param=f"{place}.type")
    if given.name is None:
        raise ClientError("A tool needs a `name`.", param=f"{place}.name")
    if given.type == "function":
        return Tool(name=given.name, description=given.description, parameters=given.parameters, strict=bool(given.strict))
    if given.format is not None and given.format.get("type") != "text":
        what = "The input of a custom tool can only be free text: leave out `format`, or use a function."
        raise ClientError(what, param=f"{place}.format")
    return Tool(name=given.name, description=given.description, parameters=_CUSTOM)


def _name(choice: object, tools: Sequence[ToolDefinition]) -> str:
    kind = choice.get("type") if isinstance(choice, dict) else None
    name = choice.get("name") if isinstance(choice, dict) else None
    if kind not in KINDS or not isinstance(name, str):
        raise ClientError(
            '`tool_choice` must be "none", "auto", "required", {"type": "function", "name": …}, {"type": "custom", "name": …} '
            'or {"type": "allowed_tools", "mode": …, "tools": […]}.',
            param="tool_choice",
        )
    if any(tool.name == name and tool.type != kind for tool in tools):
        raise ClientError(f"The tool {name[:128]!r} is not of type {kind!r}.", param="tool_choice")
    return name
