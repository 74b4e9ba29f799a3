"""`ToolUse` → the form that the answer must have, in the model's own way of writing calls. Used by `ChatSessions`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from minivllm.entrypoints.chat.tool_choice import Tool, ToolUse
from minivllm.errors import ClientError
from minivllm.messages.structured_outputs import StructuredOutputsParams
from minivllm.text.parsers.format import Layout
from minivllm.text.parsers.tool_args import types_of

Element = dict[str, Any]  # of a structural tag

# Keywords that grammars cannot keep to. Only a strict tool insists on them, and is refused for that.
_LOOSE = {"uniqueItems", "not", "if", "then", "else", "contains", "propertyNames", "dependentRequired", "dependentSchemas"}
_FREE: Element = {"type": "any_text"}
_COMBINED = ("allOf", "anyOf", "oneOf")
_NAMES_TO_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")


def constrain(use: ToolUse | None, layout: Layout, given: StructuredOutputsParams | None) -> StructuredOutputsParams | None:
    """What the answer must be like; `given` is what the user asks of it where it is no call. None: anything."""
    if use is not None and use.required:
        return _make(_calls(use, layout))
    if given is not None:
        if use is not None:
            if layout.write("", {}).startswith("{") and not layout.begin:
                message = "This model writes calls as plain JSON, which no grammar can tell from another JSON answer: "
                raise ClientError(f"{message}leave out this field or `tools`.", param=given.blamed_field)
            return _make({"type": "or", "elements": [_calls(use, layout), _answer(given, layout)]}, given)
        return _make(_answer(given, layout), given) if layout.answer and given.kind != "structural_tag" else given
    if use is None or not any(tool.strict for tool in use.tools):
        return None
    if layout.answer:
        return _make(_messages(use, layout))
    if layout.trigger is None:
        return _make(_text_or_calls(use, layout))
    if layout.begin:
        tags = [{"type": "tag", "begin": layout.begin, "content": _list(use, layout), "end": layout.end}]
    else:
        tags = _tags(use, layout)
    is_last = bool(layout.begin) or not use.parallel
    return _make({"type": "triggered_tags", "triggers": [layout.trigger], "tags": tags, "stop_after_first": is_last})


def _messages(use: ToolUse, layout: Layout) -> Element:
    """Any messages, and a last one that calls, or does not."""
    before = [{"type": "tag", "begin": begin, "content": _FREE, "end": end} for begin, end in layout.messages]
    calls = _tags(use, layout)
    if layout.other_call is not None:
        calls += _tags(use, replace(layout, call=layout.other_call))
    begins = [layout.answer, *(begin for begin, _ in layout.messages)]
    last = [{"type": "sequence", "elements": [_text(begin), _FREE]} for begin in begins]
    return {"type": "sequence", "elements": [_run(before), {"type": "or", "elements": [*calls, *last]}]}


def _text_or_calls(use: ToolUse, layout: Layout) -> Element:
    """The first call takes the beginning of the list along: from there on, the answer is no other text."""
    own, tags = _tags(use, layout), []
    more = [{**tag, "begin": layout.separator + tag["begin"]} for tag in own]
    for tag in own:
        calls = [{**tag, "begin": ""}, *([_run(more)] if use.parallel and layout.parallel else [])]
        content = {"type": "sequence", "elements": calls}
        tags.append({"type": "tag", "begin": layout.begin + tag["begin"], "content": content, "end": layout.end})
    return {"type": "text_or_tags", "tags": tags, **({"marks": layout.marks} if layout.marks is not None else {})}


def _run(tags: list[Element]) -> Element:
    """Any number of them, one after the other."""
    return {"type": "tags_with_separator", "tags": tags, "separator": "", "at_least_one": False}


def _make(element: Element, manner: StructuredOutputsParams | None = None) -> StructuredOutputsParams:
    tag = {"type": "structural_tag", "format": element}
    if manner is None:
        return StructuredOutputsParams(structural_tag=tag, origin="tools")
    empty = {manner.kind: None, "structural_tag": tag}
    return msgspec.structs.replace(manner, **empty)


def _answer(given: StructuredOutputsParams, layout: Layout) -> Element:
    elements = [_text(layout.answer)] if layout.answer else []
    return {"type": "sequence", "elements": [*elements, _given(given)]}


def _given(given: StructuredOutputsParams) -> Element:
    kind, value = given.kind, getattr(given, given.kind)
    if kind == "json":
        try:
            return {"type": "json_schema", "json_schema": msgspec.json.decode(value)}
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ClientError(f"{given.blamed_field}: this is no JSON: {error}", param=given.blamed_field) from error
    if kind == "json_object":
        return {"type": "json_schema", "json_schema": {"type": "object"}}
    if kind == "regex":
        return {"type": "regex", "pattern": value}
    if kind == "grammar":
        return {"type": "grammar", "grammar": value}
    if kind == "choice":
        return {"type": "or", "elements": [_text(text) for text in value]}
    raise ClientError("A structural tag cannot be combined with tools.", param=given.blamed_field)


def _calls(use: ToolUse, layout: Layout) -> Element:
    elements = [_text(layout.begin), _list(use, layout), _text(layout.end)]
    return {"type": "sequence", "elements": [element for element in elements if element.get("value") != ""]}


def _list(use: ToolUse, layout: Layout) -> Element:
    return {
        "type": "tags_with_separator",
        "tags": _tags(use, layout),
        "separator": layout.separator,
        "at_least_one": True,
        "stop_after_first": not (use.parallel and layout.parallel),
    }


def _tags(use: ToolUse, layout: Layout) -> list[Element]:
    return [_tag(tool, layout) for tool in use.tools]


def _tag(tool: Tool, layout: Layout) -> Element:
    before, between, after = layout.call
    schema = arguments_schema(tool)
    if layout.argument is None:
        content: Element = {"type": "json_schema", "json_schema": schema}
    elif schema.get("properties"):
        content = _arguments(schema, layout)
    else:
        content, after = _text(after), ""
    if layout.numbered:
        content = {"type": "sequence", "elements": [{"type": "regex", "pattern": "[0-9]{1,3}"}, _text(between), content]}
        between = ":"
    return {"type": "tag", "begin": before + tool.name + between, "content": content, "end": after}


def _text(text: str) -> Element:
    return {"type": "const_string", "value": text}


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """The parameters of a tool: objects with named properties have no others, unless the schema says so."""
    schema = {"type": "object"} | _closed(tool.parameters or {}, tool.strict)
    says_something = schema.keys() & {"properties", "patternProperties", "additionalProperties", "$ref", *_COMBINED}
    return schema if says_something else {**schema, "properties": {}, "additionalProperties": False}


def _closed(schema: Mapping[str, Any], strict: bool, is_part: bool = False) -> dict[str, Any]:
    """`is_part`: other schemas hold for the same object, and may have properties of their own."""
    closed: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _LOOSE and not strict:
            continue
        if key in _NAMES_TO_SCHEMAS and isinstance(value, Mapping):
            value = {name: _closed(part, strict) if isinstance(part, Mapping) else part for name, part in value.items()}
        elif key not in ("const", "enum", "default", "examples"):
            within = key in _COMBINED and (is_part or key == "allOf" or "properties" in schema)
            if isinstance(value, Mapping):
                value = _closed(value, strict, within)
            elif isinstance(value, list):
                value = [_closed(part, strict, within) if isinstance(part, Mapping) else part for part in value]
        closed[key] = value
    alone = not is_part and not closed.keys() & {"patternProperties", "$ref", *_COMBINED}
    if alone and isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def _arguments(schema: dict[str, Any], layout: Layout) -> Element:
    """One element for each property, in the order of the schema; those that are not required may be missing."""
    assert layout.argument is not None
    properties, separator = schema["properties"], layout.argument_separator
    required = set(schema.get("required", ()))
    # What is required comes first where a separator stands between two.
    names = sorted(properties, key=lambda name: name not in required) if separator else list(properties)
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}

    def tag(name: str, lead: str) -> Element:
        part = properties[name]
        before, between, after = layout.argument or ("", "", "")
        content = _value({**part, **shared} if isinstance(part, dict) else part, layout)
        return {"type": "tag", "begin": lead + before + name + between, "content": content, "end": after}

    def element(name: str, lead: str) -> Element:
        return tag(name, lead) if name in required else _optional([tag(name, lead)])

    if not separator or (names and names[0] in required):
        elements = [element(name, separator if index else "") for index, name in enumerate(names)]
        return {"type": "sequence", "elements": elements}
    # Any one may be the first.
    chains = [
        {"type": "tag", "begin": "", "content": {"type": "sequence", "elements": [tag(name, ""), *rest]}, "end": ""}
        for index, name in enumerate(names)
        for rest in [[element(other, separator) for other in names[index + 1 :]]]
    ]
    return _optional(chains)


def _optional(tags: list[Element]) -> Element:
    return {**_run(tags), "stop_after_first": True}


def _value(schema: Any, layout: Layout) -> Element:
    if not layout.raw_texts or types_of(schema) != {"string"}:
        return {"type": "json_schema", "json_schema": schema}
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if any(choices):
        return {"type": "or", "elements": [_text(choice) for choice in choices if choice]}
    return _FREE
