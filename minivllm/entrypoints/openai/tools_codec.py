"""Tools and tool choice of `/v1/chat/completions` → `Tool`s and `ToolUse`, the older `functions` among them."""

from collections.abc import Sequence
from typing import Any

from minivllm.entrypoints.chat.tool_choice import Tool, ToolUse, check_tools, choose
from minivllm.entrypoints.openai.chat_schema import ChatCompletionRequest, FunctionDefinition, ToolDefinition
from minivllm.errors import ClientError


def decode(body: ChatCompletionRequest) -> tuple[list[Tool], ToolUse | None]:
    """The tools to show to the model, and which of them it may call (None: none)."""
    if body.functions is not None or body.function_call is not None:
        if body.tools is not None or body.tool_choice is not None:
            raise ClientError("`functions` and `tools` exclude each other; `tools` is the newer one.", param="functions")
        tools = [_tool(function) for function in body.functions or ()]
        check_tools(tools, "functions", "")
        return _decode_choice(tools, _from_function_call(body.function_call), "function_call", parallel=False)
    tools = decode_tools(body.tools)
    return _decode_choice(tools, body.tool_choice, "tool_choice", parallel=body.parallel_tool_calls is not False)


def decode_tools(given: Sequence[ToolDefinition] | None) -> list[Tool]:
    tools = [_tool(tool.function) for tool in given or ()]
    check_tools(tools)
    return tools


def _tool(function: FunctionDefinition) -> Tool:
    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=bool(function.strict),
    )


def _from_function_call(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    return {"type": "function", "function": choice} if isinstance(choice, dict) else choice


def _decode_choice(
    tools: list[Tool], choice: str | dict[str, Any] | None, param: str, *, parallel: bool
) -> tuple[list[Tool], ToolUse | None]:
    every = [tool.name for tool in tools]
    if choice == "none" or (not tools and choice in (None, "auto")):
        return [], None  # a model that sees tools calls them
    if not tools:
        raise ClientError(f"When using `{param}`, `tools` must be set.", param=param)
    if choice in (None, "auto", "required"):
        return tools, choose(tools, every, required=choice == "required", parallel=parallel)
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            return tools, _decode_allowed(tools, choice, parallel)
        name = _function_name(choice)
        if name is not None:
            return tools, choose(tools, [name], required=True, parallel=False, param=param)
    raise ClientError(
        f'`{param}` must be "none", "auto", "required" or {{"type": "function", "function": {{"name": …}}}}.', param=param
    )


def _decode_allowed(tools: list[Tool], choice: dict[str, Any], parallel: bool) -> ToolUse:
    inner = choice.get("allowed_tools", choice)
    allowed = inner.get("tools") if isinstance(inner, dict) else None
    mode = inner.get("mode") if isinstance(inner, dict) else None
    names = [_function_name(tool) for tool in allowed] if isinstance(allowed, list) else []
    known = [name for name in names if name is not None]
    if mode not in ("auto", "required") or not names or len(known) < len(names):
        raise ClientError('`tool_choice` of type "allowed_tools" needs a `mode` and a list of `tools`.', param="tool_choice")
    return choose(tools, known, required=mode == "required", parallel=parallel)


def _function_name(choice: object) -> str | None:
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
