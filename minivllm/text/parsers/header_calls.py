"""Calls as a header that holds the name, and the arguments as a JSON object behind it."""

import re
from dataclasses import dataclass

from minivllm.text.parsers.format import Tools
from minivllm.text.parsers.source import Malformed, Markers, Source, Steps, Write, skip_to_end
from minivllm.text.parsers.tool_args import arguments
from minivllm.text.parsers.writer import EventWriter

MAX_HEADER = 512  # characters


@dataclass(frozen=True, kw_only=True)
class HeaderCalls:
    """`call_start` header `{…}` `call_end`, as often as there are calls; `section` may stand around all of them.

    `header` finds the groups `name` and, where the model numbers its calls, `id`. Without `call_end`, a call ends with its
    arguments.
    """

    call_start: str
    header: re.Pattern[str]
    call_end: str | None = None
    section: tuple[str, str] | None = None
    marks: tuple[str, ...] = ()
    bare: str = ""

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.call_start,) if self.section is None else (self.section[0], self.call_start)

    @property
    def ends(self) -> tuple[str, ...]:
        if self.section is not None:
            return (self.section[1],)
        return () if self.call_end is None else (self.call_end,)

    def read(self, source: Source, writer: EventWriter, tools: Tools, start: str) -> Steps[None]:
        if self.section is not None and start == self.section[0]:
            yield from source.space()
            if not (yield from source.literal(self.call_start)):
                raise Malformed
        yield from read_header_call(source, writer, self.header)
        if self.section is None:
            yield from skip_to_end(source, writer.text, self.starts, self.ends)
        else:
            # Between the calls of a section there is only what closes them.
            yield from skip_to_end(source, writer.text, (self.call_start,), self.ends)


def read_header_call(source: Source, writer: EventWriter, pattern: re.Pattern[str]) -> Steps[None]:
    """Reads a header and the arguments that follow it."""
    parts: list[str] = []
    if (yield from source.until(Markers("{"), _up_to_limit(parts))) is None:
        raise Malformed
    source.at -= 1
    match = pattern.fullmatch("".join(parts))
    if match is None:
        raise Malformed
    source.forget()
    writer.start_call(match["name"], match.groupdict().get("id"))
    yield from arguments(source, writer.arguments)
    writer.end_call()
    source.mark()


def _up_to_limit(parts: list[str]) -> Write:
    def write(text: str) -> None:
        parts.append(text)
        if sum(map(len, parts)) > MAX_HEADER:
            raise Malformed

    return write
