"""`OutputParser`: the text of one choice → `ChatEvent`s. Fed by `ChatSession`; made by `registry`."""

from dataclasses import dataclass, field

from minivllm.text.parsers.events import ChatEvent
from minivllm.text.parsers.format import CallSyntax, Reader, Reasoning, Tools
from minivllm.text.parsers.source import Malformed, Markers, Source, Steps
from minivllm.text.parsers.writer import EventWriter


class OutputParser:
    """`feed` gives the events that are certain; `finish` the rest. Joined, they depend on the whole text alone."""

    def __init__(self, reader: Reader, writer: EventWriter):
        self.writer = writer
        self._source = Source()
        self._steps = reader(self._source, writer)

    def feed(self, text: str) -> list[ChatEvent]:
        self._source.add(text)
        next(self._steps, None)
        return self.writer.take()

    def finish(self) -> list[ChatEvent]:
        """The text is over."""
        self._source.ended = True
        for _ in self._steps:
            raise AssertionError("a parser waits for more behind the end")
        self.writer.finish()
        return self.writer.take()

    def finish_reason(self, reason: str) -> str:
        """What `reason`, that of the text, is for the answer: "tool_calls" if every call is complete, and it stopped by itself
        or behind the last call that may be."""
        writer = self.writer
        ended = reason == "stop" or (reason == "length" and writer.is_full)
        return "tool_calls" if ended and writer.num_calls and writer.num_calls == writer.num_complete else reason


@dataclass(frozen=True, kw_only=True)
class MarkedReader:
    """Reads answers in which marks divide thoughts, text and calls.

    `hidden` are marks that a client does not want to see where they mean nothing: special tokens.
    """

    calls: CallSyntax | None = None  # None: calls are text
    reasoning: Reasoning | None = None
    tools: Tools = field(default_factory=dict)
    starts_thinking: bool = False
    hidden: tuple[str, ...] = ()

    def __call__(self, source: Source, writer: EventWriter) -> Steps[None]:
        call_starts = self.calls.starts if self.calls is not None else ()
        thought_starts = self.reasoning.starts if self.reasoning is not None else ()
        dropped = set(self.hidden) | set(self.reasoning.dropped if self.reasoning is not None else ())
        markers = Markers(*call_starts, *thought_starts, *dropped)
        if self.starts_thinking:
            yield from self._think(source, writer)
        bare = self.calls.bare if self.calls is not None else ""
        while True:
            if bare and not writer.has_text:
                first = yield from source.space(writer.text)
                if first and first in bare:
                    num_before = writer.num_started
                    yield from self._call(source, writer, "")
                    if writer.num_started == num_before:
                        bare = ""
                    continue
            marker = yield from source.until(markers, writer.text)
            if marker is None:
                return
            if marker in thought_starts and not writer.has_text:
                yield from self._think(source, writer)
            elif marker in call_starts:
                yield from self._call(source, writer, marker)
            elif marker not in dropped:
                writer.text(marker)

    def _think(self, source: Source, writer: EventWriter) -> Steps[None]:
        assert self.reasoning is not None
        starts, ends = self.reasoning.starts, self.reasoning.ends
        call_starts = self.calls.starts if self.calls is not None and self.reasoning.ended_by_calls else ()
        yield from source.space()
        for start in starts:  # which a model may repeat after a prompt that ends with it
            if (yield from source.literal(start)):
                break
        markers = Markers(*ends, *call_starts, *self.hidden)
        while (marker := (yield from source.until(markers, writer.reasoning))) is not None:
            if marker in ends or marker in call_starts:
                writer.end_reasoning()
                if marker in call_starts:
                    source.at -= len(marker)
                return

    def _call(self, source: Source, writer: EventWriter, start: str) -> Steps[None]:
        assert self.calls is not None
        num_before = writer.num_started
        source.mark()
        try:
            yield from self.calls.read(source, writer, self.tools, start)
            source.forget()
        except Malformed:
            if source.marked:
                source.rewind()
                if start not in self.hidden and writer.num_started == num_before:
                    writer.text(start)
            else:  # in the middle of a call, which stays incomplete
                yield from source.until(Markers(*self.calls.starts, *self.calls.ends), lambda text: None)
