"""Calls as Python writes them: `[get_weather(city="Paris"), add(a=1, b=2)]`."""

import ast
import re
from dataclasses import dataclass

from minivllm.text.parsers.format import Tools
from minivllm.text.parsers.source import Malformed, Markers, Source, Steps, skip_to_end
from minivllm.text.parsers.tool_args import encode
from minivllm.text.parsers.writer import EventWriter

MAX_NAME = 128  # characters
MAX_CALL = 1 << 20  # characters

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_BRACKET_OR_QUOTE = Markers(*"()[]{}'\"")
_CLOSES = {")": "(", "]": "[", "}": "{"}
_NAMES = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, kw_only=True)
class PythonCalls:
    """A list of calls with keyword arguments that are literals. A call is given on when it is complete."""

    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    bare: str = "["

    def read(self, source: Source, writer: EventWriter, tools: Tools, start: str) -> Steps[None]:
        if (yield from source.space()) != "[":
            raise Malformed
        source.at += 1
        while True:
            name, arguments = yield from self._read_call(source, None if start else tools)
            char = yield from source.space()
            if not char or char not in ",]":
                raise Malformed
            source.at += 1
            source.forget()
            writer.start_call(name)
            writer.arguments(arguments)
            writer.end_call()
            source.mark()
            if char == "]":
                break
        yield from skip_to_end(source, writer.text, self.starts, self.ends)

    def _read_call(self, source: Source, known: Tools | None) -> Steps[tuple[str, str]]:
        yield from source.space()
        name = ""
        while (char := (yield from source.take())) != "(":
            name += char
            if len(name) > MAX_NAME:
                raise Malformed
        name = name.strip()
        if not _NAME.fullmatch(name) or (known is not None and name not in known):
            raise Malformed
        parts = ["f("]
        length, open_brackets = 0, ["("]
        while open_brackets:
            found = yield from source.until(_BRACKET_OR_QUOTE, parts.append)
            if found is None:
                raise Malformed
            parts.append(found)
            if found in _CLOSES:
                if open_brackets.pop() != _CLOSES[found]:
                    raise Malformed
            elif found in "([{":
                open_brackets.append(found)
            else:
                yield from _read_quoted(source, found, parts)
            length += len(parts[-1]) + len(parts[-2])
            if length > MAX_CALL:
                raise Malformed
        return name, _arguments("".join(parts))


def _read_quoted(source: Source, quote: str, parts: list[str]) -> Steps[None]:
    while True:
        char = yield from source.take()
        parts.append(char)
        if char == quote:
            return
        if char == "\\":
            parts.append((yield from source.take()))


def _arguments(text: str) -> str:
    """The keyword arguments of the call `text` as a JSON object."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            raise Malformed
        return encode({keyword.arg: _literal(keyword.value) for keyword in call.keywords}).decode()
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise Malformed from error


def _literal(node: ast.expr) -> object:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            # Characters written as two escapes, as JSON does it.
            return node.value.encode("utf-16", "surrogatepass").decode("utf-16")
        if node.value is None or isinstance(node.value, (bool, int, float)):
            return node.value
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True)}
    raise Malformed


def _key(node: ast.expr | None) -> str:
    key = None if node is None else _literal(node)
    if not isinstance(key, str):
        raise Malformed
    return key
