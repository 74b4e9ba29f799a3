"""`EventWriter`: what a parser finds, as `ChatEvent`s of one choice. White space around thoughts and calls is left out."""

import secrets
import string
from collections.abc import Callable

import msgspec

from minivllm.text.parsers.events import ChatEvent, ReasoningDelta, TextDelta, ToolArgsDelta, ToolCallStart

ALPHANUMERIC = string.ascii_letters + string.digits


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


class EventWriter:
    """A call counts as complete if its arguments are a JSON object. What follows `max_calls` complete calls is left out."""

    def __init__(self, index: int, max_calls: int | None = None, new_id: Callable[[], str] = new_call_id):
        self.has_text = False
        self.reasoning_text: list[str] = []
        self.num_started = 0  # calls, also those left out
        self.num_calls = 0
        self.num_complete = 0
        self._index = index
        self._max_calls = max_calls
        self._new_id = new_id
        self._events: list[ChatEvent] = []
        self._space = ""  # white space at the end, written when something follows that it belongs to
        self._trim = False  # white space that comes next is left out
        self._thinking = False
        self._arguments: list[str] = []  # of the call started last
        self._muted = False  # that call is one too many

    def take(self) -> list[ChatEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    @property
    def is_full(self) -> bool:
        return self._max_calls is not None and self.num_complete >= self._max_calls

    def text(self, text: str) -> None:
        if self.is_full:
            return
        if text := self._without_ends(text):
            self.has_text = True
            last = self._events[-1] if self._events else None
            if isinstance(last, TextDelta):
                last.text += text
            else:
                self._events.append(TextDelta(self._index, text))

    def reasoning(self, text: str) -> None:
        if not self._thinking:
            self._thinking, self._space, self._trim = True, "", True
        if text := self._without_ends(text):
            self.reasoning_text.append(text)
            last = self._events[-1] if self._events else None
            if isinstance(last, ReasoningDelta):
                last.text += text
            else:
                self._events.append(ReasoningDelta(self._index, text))

    def end_reasoning(self) -> None:
        self._thinking, self._space, self._trim = False, "", True

    def start_call(self, name: str, call_id: str | None = None) -> None:
        self._space, self._trim = "", not self.has_text
        self._arguments = []
        self.num_started += 1
        self._muted = self._max_calls is not None and self.num_calls >= self._max_calls  # also after one that is incomplete
        if not self._muted:
            self._events.append(ToolCallStart(self._index, self.num_calls, call_id or self._new_id(), name))
            self.num_calls += 1

    def arguments(self, text: str) -> None:
        """More of the JSON text of the arguments of the call started last."""
        if self._muted or not text:
            return
        self._arguments.append(text)
        last = self._events[-1] if self._events else None
        if isinstance(last, ToolArgsDelta):
            last.text += text
        else:
            self._events.append(ToolArgsDelta(self._index, self.num_calls - 1, text))

    def end_call(self) -> None:
        if self._muted:
            return
        try:
            arguments = msgspec.json.decode("".join(self._arguments))
        except (msgspec.MsgspecError, RecursionError):
            return
        if isinstance(arguments, dict):
            self.num_complete += 1

    def finish(self) -> None:
        """The answer is over: white space at its end is part of it, unless it stands behind a call."""
        if self._space and not self.num_calls:
            space, self._space = self._space, ""
            kind = ReasoningDelta if self._thinking else TextDelta
            self._events.append(kind(self._index, space))

    def _without_ends(self, text: str) -> str:
        if self._trim:
            text = text.lstrip()
            if not text:
                return ""
            self._trim = False
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        return kept
