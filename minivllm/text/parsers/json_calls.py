"""Calls as JSON objects with a name and arguments: alone, in a list, or one after the other."""

from dataclasses import dataclass

from minivllm.text.parsers.format import Tools
from minivllm.text.parsers.source import Malformed, Source, Steps, skip_to_end
from minivllm.text.parsers.tool_args import arguments, json_value, read_string
from minivllm.text.parsers.writer import EventWriter

NAMES = ("name", "tool_name", "function_name")
ARGUMENTS = ("arguments", "parameters", "args")
FENCE = "```"


@dataclass(frozen=True, kw_only=True)
class JsonCalls:
    """`{"name": …, "arguments": …}` after one of `starts`, up to one of `ends`; without them, as long as calls follow.

    Small models forget the marks, or write a fence around the JSON in their place: such `bare` calls at the beginning of an
    answer count if they have arguments and the name of a tool.
    """

    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    bare: str = ""
    marks: tuple[str, ...] = ()

    def read(self, source: Source, writer: EventWriter, tools: Tools, start: str) -> Steps[None]:
        known = None if start else tools
        is_fenced = not start and (yield from source.literal(FENCE))
        if is_fenced:
            yield from source.literal("json")
        in_list = (yield from source.space()) == "["
        source.at += in_list
        yield from read_call(source, writer, known)
        while True:
            char = yield from source.space()
            if char and char in ",;":
                source.at += 1
                char = yield from source.space()
            if char == "{":
                yield from read_call(source, writer, known)
            elif char == "]" and in_list:
                source.at += 1
                in_list = False
            else:
                break
        if is_fenced:
            yield from source.literal(FENCE)
        if start:
            yield from skip_to_end(source, writer.text, self.starts, self.ends)


def read_call(source: Source, writer: EventWriter, known: Tools | None) -> Steps[None]:
    """Reads one object. Arguments that stand before the name wait for it; if only `known` names count, a name waits too."""
    if (yield from source.space()) != "{":
        raise Malformed
    source.at += 1
    depth, name, started, has_arguments = 1, "", False, False
    waiting: list[str] = []
    while depth:
        char = yield from source.space()
        if char in ("}", ","):
            source.at += 1
            depth -= char == "}"
            continue
        key = yield from read_string(source)
        if (yield from source.space()) != ":":
            raise Malformed
        source.at += 1
        char = yield from source.space()
        if char == '"' and not name and (key in NAMES or key == "function"):
            name = yield from read_string(source)
            if not name or (known is not None and name not in known):
                raise Malformed
            started = known is None or has_arguments
            if started:
                _start_call(source, writer, name, waiting)
        elif key == "function" and char == "{":
            source.at += 1
            depth += 1
        elif key in ARGUMENTS and not has_arguments:
            has_arguments = True
            if name and not started:
                started = True
                _start_call(source, writer, name, waiting)
            yield from arguments(source, writer.arguments if started else waiting.append)
        else:
            yield from json_value(source, _ignore)
    if not started:
        raise Malformed
    if not has_arguments:
        writer.arguments("{}")
    writer.end_call()
    source.mark()


def _start_call(source: Source, writer: EventWriter, name: str, waiting: list[str]) -> None:
    source.forget()
    writer.start_call(name)
    writer.arguments("".join(waiting))


def _ignore(text: str) -> None:
    """What nobody asks for."""
