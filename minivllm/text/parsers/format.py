"""`Format`: how one model family writes thoughts and calls. Made by the files in `formats/`, read by `parser`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from minivllm.text.parsers.source import Source, Steps
from minivllm.text.parsers.writer import EventWriter, new_call_id

Tools = Mapping[str, Mapping[str, Any]]  # the JSON schema of the parameters of each tool that may be called


@dataclass(frozen=True, kw_only=True)
class Reasoning:
    """Thoughts between two marks, at the beginning of an answer or in between calls."""

    starts: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    dropped: tuple[str, ...] = ()  # marks around the answer itself
    implicit: bool = False  # the answer begins with thoughts even where nothing says so
    ended_by_calls: bool = False  # a call ends the thoughts


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
    """`seen_in`: strings of which each tells that a chat template belongs to this family."""

    names: tuple[str, ...]  # for users; the first is the family's
    calls: CallSyntax | None = None
    layout: Layout | None = None  # of its calls
    reasoning: Reasoning | None = None
    seen_in: tuple[str, ...] = ()
    new_call_id: Callable[[], str] = new_call_id
