"""Which tools a model may or must call. Made by the codecs; `ToolUse` of a request becomes a grammar in `grammar`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from minivllm.errors import ClientError

MAX_TOOLS = 128
MAX_TOOL_SIZE = 64 << 10  # characters of a tool as JSON
MAX_SCHEMA_DEPTH = 64

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}


@dataclass(slots=True, kw_only=True)
class Tool:
    """A function that the model may call. `parameters`: the JSON schema of its arguments, an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False

    def for_template(self) -> dict[str, Any]:
        """The form that chat templates print."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters if self.parameters is not None else {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


@dataclass(slots=True, kw_only=True)
class ToolUse:
    """`required`: nothing but calls may be answered. Not `parallel`: at most one call."""

    tools: list[Tool]  # those that may be called
    required: bool = False
    parallel: bool = True

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        return {tool.name: tool.parameters or {} for tool in self.tools}


def choose(
    tools: Sequence[Tool], names: Sequence[str], *, required: bool, parallel: bool, param: str = "tool_choice"
) -> ToolUse:
    """Only the tools `names` may be called. `ClientError` for a name that is none of them."""
    known = {tool.name: tool for tool in tools}
    for name in names:
        if name not in known:
            raise ClientError(
                f"The tool {name[:128]!r} specified in `{param}` does not match any of the specified `tools`.",
                param=param,
            )
    return ToolUse(tools=[known[name] for name in names], required=required, parallel=parallel)


def check_tools(tools: Sequence[Tool], where: str = "tools", part: str = ".function") -> None:
    """`ClientError` with the place of what is wrong: `tools[1].function.name`."""
    if len(tools) > MAX_TOOLS:
        raise ClientError(f"At most {MAX_TOOLS} tools are allowed, got {len(tools)}.", param=where)
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        place = f"{where}[{index}]{part}"
        if not _NAME.fullmatch(tool.name):
            raise ClientError(
                "The name of a tool must have 1 to 128 characters out of a-z, A-Z, 0-9, dot, underscore and hyphen.",
                param=f"{place}.name",
            )
        if tool.name in seen:
            raise ClientError(f"Two tools have the name {tool.name!r}.", param=f"{place}.name")
        seen.add(tool.name)
        if tool.parameters is not None:
            _check_parameters(tool.parameters, f"{place}.parameters")


def _check_parameters(schema: Mapping[str, Any], place: str) -> None:
    if schema.get("type", "object") != "object":
        raise ClientError("The parameters of a tool must be a JSON schema of type 'object'.", param=place)
    if len(msgspec.json.encode(schema)) > MAX_TOOL_SIZE:
        raise ClientError(f"The parameters of a tool may have at most {MAX_TOOL_SIZE} bytes.", param=place)
    _check_schema(schema, place, MAX_SCHEMA_DEPTH)


def _check_schema(schema: object, place: str, depth: int) -> None:
    """What is wrong in the outer form of a schema: its keywords are the grammar's business, if there is one."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ClientError("A JSON schema must be an object.", param=place)
    if not depth:
        raise ClientError(f"A JSON schema may have at most {MAX_SCHEMA_DEPTH} levels.", param=place)
    kind = schema.get("type", [])
    kinds = kind if isinstance(kind, list) else [kind]
    if wrong := [each for each in kinds if not isinstance(each, str) or each not in _TYPES]:
        raise ClientError(f"{str(wrong[0])[:50]!r} is not a type of JSON schema.", param=f"{place}.type")
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise ClientError("`properties` must be an object.", param=f"{place}.properties")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise ClientError("`required` must be a list of names.", param=f"{place}.required")
    for name, each in properties.items():
        _check_schema(each, f"{place}.properties.{name[:64]}", depth - 1)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), Mapping):
            _check_schema(schema[name], f"{place}.{name}", depth - 1)
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            if not isinstance(schema[name], list):
                raise ClientError(f"`{name}` must be a list of schemas.", param=f"{place}.{name}")
            for index, each in enumerate(schema[name]):
                _check_schema(each, f"{place}.{name}[{index}]", depth - 1)
