"""`Format`: how one model family writes thoughts and calls. Made by the files in `formats/`, read by `parser`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minivllm.text.parsers.source import Source, Steps
from minivllm.text.parsers.writer import EventWriter, new_call_id

Tools = Mapping[str, Mapping[str, Any]]  # the JSON schema of the parameters of each tool that may be called
Reader = Callable[[Source, EventWriter], Steps[None]]  # of a whole answer


@dataclass(frozen=True, kw_only=True)
class Reasoning:
    """Thoughts between two marks, at the beginning of an answer or in between calls."""

    starts: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    dropped: tuple[str, ...] = ()  # marks around the answer itself
    implicit: bool = False  # the answer begins with thoughts even where nothing says so
    ended_by_calls: bool = False  # a call ends the thoughts
    gate: str | None = None  # the text after which a grammar sets in, if it is not that of `ends`


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the family writes its calls to the letter; grammars force models to write them so."""

    begin: str = ""
    call: tuple[str, str, str]  # around the name and the arguments
    separator: str = "\n"
    end: str = ""
    # Around the name and the value of each argument, and between two; None: the arguments are one JSON object.
    argument: tuple[str, str, str] | None = None
    argument_separator: str = ""
    raw_texts: bool = False  # arguments that are texts stand there without quotes
    numbered: bool = False  # a colon and a number follow the name
    parallel: bool = True  # there may be several
    trigger: str | None = None  # the text with which calls begin; None: they can only begin an answer, or a message of it
    marks: tuple[str, str] | None = None  # that may stand around all of them then, behind other text
    answer: str = ""  # what stands before an answer that is no call
    messages: tuple[tuple[str, str], ...] = ()  # those that may come before it: what stands before and behind each
    other_call: tuple[str, str, str] | None = None  # another way to write `call`

    def write(self, name: str, arguments: Mapping[str, Any], number: int = 0) -> str:
        """One call as the model writes it, without what stands around all of them."""
        before, between, after = self.call
        if self.argument is None:
            written = json.dumps(arguments, ensure_ascii=False)
        else:
            one, two, three = self.argument
            texts = {
                key: value if self.raw_texts and isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                for key, value in arguments.items()
            }
            written = self.argument_separator.join(f"{one}{key}{two}{text}{three}" for key, text in texts.items())
        return f"{before}{name}{f':{number}' if self.numbered else ''}{between}{written}{after}"

    def write_all(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Several calls, each a name and its arguments."""
        written = [self.write(name, arguments, number) for number, (name, arguments) in enumerate(calls)]
        return self.begin + self.separator.join(written) + self.end


class CallSyntax(Protocol):
    """How calls are read."""

    @property
    def starts(self) -> tuple[str, ...]:
        """What opens a run of calls."""

    @property
    def bare(self) -> str:
        """Characters that may open it without a mark, at the beginning of an answer."""

    @property
    def ends(self) -> tuple[str, ...]:
        """What closes it."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Further strings in it that may be special tokens."""

    def read(self, source: Source, writer: EventWriter, tools: Tools, start: str) -> Steps[None]:
        """Reads what follows `start` ("": nothing) up to the end of the run of calls, or to the start of another.

        `source.forget` says that it is a call indeed. `Malformed` before that: it is text; after it: the call stays incomplete.
        """


@dataclass(frozen=True, kw_only=True)
class Format:
    """One family's way. `seen_in`: strings of which each tells that a chat template belongs to it."""

    names: tuple[str, ...]  # for users; the first is the family's
    calls: CallSyntax | None = None
    layout: Layout | None = None  # of its calls
    reasoning: Reasoning | None = None
    seen_in: tuple[str, ...] = ()
    new_call_id: Callable[[], str] = new_call_id
    make_reader: Callable[[str, Tools], Reader] | None = (
        None  # from the prompt; for what is not text, thoughts and calls in a row
    )
    own_marks: tuple[str, ...] = ()  # what such a reader looks for

    @property
    def marks(self) -> tuple[str, ...]:
        """All strings of its calls that may be special tokens."""
        calls = self.calls
        return self.own_marks if calls is None else (*calls.starts, *calls.ends, *calls.marks)
