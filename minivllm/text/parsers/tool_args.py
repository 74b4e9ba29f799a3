"""Arguments of tool calls while they arrive: JSON passed on as it comes, and texts in XML-like tags made into JSON."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from minivllm.text.parsers.source import Malformed, Source, Steps, Write

# What may not stand between the strings, numbers and words of JSON; the brackets and quotes that structure it are among it.
_STRUCTURE = re.compile(r"[^\s\w+\-.,:]")
_IN_STRING = re.compile(r'["\\\x00-\x1f]')
_SCALAR_END = re.compile(r"[\s,}\]]")
_ESCAPES = '"\\/bfnrtu'
_CLOSING = {"{": "}", "[": "]"}
# JSON's words and Python's, which models mix up.
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}

encode = msgspec.json.Encoder().encode


def json_value(source: Source, write: Write) -> Steps[None]:
    """Reads one JSON value and writes it as it comes. `Malformed` where it cannot be JSON, or at the end of the text."""
    first = yield from source.space()
    if first == '"':
        yield from json_string(source, write)
    elif first in _CLOSING:
        yield from _json_brackets(source, write)
    else:
        yield from _json_scalar(source, write)


def json_string(source: Source, write: Write) -> Steps[None]:
    """Reads a string and writes it with its quotes. Line breaks and backslashes that should have been escaped, are."""
    write((yield from source.take()))
    while True:
        match = _IN_STRING.search(source.text, source.at)
        end = len(source.text) if match is None else match.start()
        if end > source.at:
            write(source.text[source.at : end])
            source.at = end
        char = yield from source.take()
        if char == '"':
            write(char)
            return
        if char == "\\":
            escaped = yield from source.take()
            write(char + escaped if escaped in _ESCAPES else escaped if escaped == "'" else "\\\\" + escaped)
        elif char < " ":
            write(encode(char).decode()[1:-1])
        else:
            write(char)


def read_string(source: Source) -> Steps[str]:
    """Reads a JSON string and returns what it says."""
    if (yield from source.space()) != '"':
        raise Malformed
    parts: list[str] = []
    yield from json_string(source, parts.append)
    return str(decode("".join(parts)))


def arguments(source: Source, write: Write) -> Steps[None]:
    """Reads the arguments of a call: an object, written as it comes; or one inside a string, or null."""
    first = yield from source.space()
    if first == "{":
        yield from _json_brackets(source, write)
    elif first == '"':
        text = yield from read_string(source)
        if not isinstance(decode(text or "{}"), dict):
            raise Malformed
        write(text or "{}")
    elif (yield from source.literal("null")):
        write("{}")
    else:
        raise Malformed


def decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Malformed from error


def _json_brackets(source: Source, write: Write) -> Steps[None]:
    closing: list[str] = []
    while True:
        match = _STRUCTURE.search(source.text, source.at)
        end = len(source.text) if match is None else match.start()
        if end > source.at:
            write(source.text[source.at : end])
            source.at = end
        char = yield from source.peek()
        if char == '"':
            yield from json_string(source, write)
            continue
        if not char or not (char in _CLOSING or (closing and char == closing[-1])):
            if not char or _STRUCTURE.match(char):
                raise Malformed
            continue
        source.at += 1
        write(char)
        if char in _CLOSING:
            closing.append(_CLOSING[char])
        else:
            closing.pop()
            if not closing:
                return


def _json_scalar(source: Source, write: Write) -> Steps[None]:
    parts: list[str] = []
    while True:
        match = _SCALAR_END.search(source.text, source.at)
        end = len(source.text) if match is None else match.start()
        parts.append(source.text[source.at : end])
        source.at = end
        if match is not None or not (yield from source.peek()):
            break
    text = "".join(parts)
    decode(text)
    write(text)


def types_of(schema: object) -> set[str]:
    """The JSON types that a value of this schema may have, as far as is easily seen; empty: not known."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {each for each in kind if isinstance(each, str)}
    if isinstance(schema.get("enum"), list):
        return {"string" if isinstance(value, str) else "" for value in schema["enum"]}
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            parts = [types_of(part) for part in schema[name]]
            return set().union(*parts) if all(parts) else set()
    return set()


def value_from_text(text: str, schema: object) -> bytes:
    """What stands between two tags, as JSON: a text if the schema says so, else the JSON value it is, if it is one."""
    kinds = types_of(schema)
    stripped = text.strip()
    if kinds == {"string"}:
        return encode(text)
    if stripped in _WORDS and ("string" not in kinds or (stripped in ("null", "None") and "null" in kinds)):
        return encode(_WORDS[stripped])
    try:
        value = msgspec.json.decode(stripped)
    except (msgspec.MsgspecError, RecursionError):
        return encode(text)
    if "string" in kinds and _type_name(value) not in kinds:
        return encode(text)
    return encode(value)


def _type_name(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return names[type(value)]
