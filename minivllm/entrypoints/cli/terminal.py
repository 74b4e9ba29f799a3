"""Reading lines and showing streamed text in a terminal, for `minivllm chat` and `minivllm complete`."""

import contextlib
import sys
from collections.abc import Generator, Iterator
from typing import NamedTuple

with contextlib.suppress(ImportError):  # not on every platform; lines are then read without editing
    import readline  # noqa: F401  (gives input() line editing and history)


class Shown(NamedTuple):
    text: str
    status: int  # exit status: 130 if Ctrl-C stopped it


def read_lines(prompt: str) -> Iterator[str]:
    """Non-empty lines until Ctrl-D, the end of a pipe, or Ctrl-C at the prompt."""
    interactive = sys.stdin.isatty()
    while True:
        try:
            line = input(prompt if interactive else "")
        except (EOFError, KeyboardInterrupt):
            if interactive:
                print()
            return
        if line.strip():
            yield line


def show(pieces: Iterator[str]) -> Shown:
    """Print pieces as they come, then a line end. Ctrl-C ends the answer, and by closing the connection its generation."""
    shown = []
    status = 0
    try:
        for piece in pieces:
            shown.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        status = 130
        if isinstance(pieces, Generator):
            pieces.close()
    print()
    return Shown("".join(shown), status)
