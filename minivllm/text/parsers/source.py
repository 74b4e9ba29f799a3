"""`Source`: a growing text that parsers read as if it were all there. They are generators that pause where it ends for now."""

import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # a parser: pauses with `yield`, and is resumed when there is more text
Write = Callable[[str], None]

_SPACE = re.compile(r"\s*")


class Malformed(Exception):
    """The text is not what the parser reads, or it ended within."""


class Markers:
    """A set of strings to be found in a text. None is part of another: else a find would depend on how the text is cut."""

    def __init__(self, *markers: str):
        self.all = tuple(dict.fromkeys(markers))
        assert all(a == b or a not in b for a in self.all for b in self.all), self.all
        # Without markers: a pattern that matches nothing.
        self._pattern = re.compile("|".join(map(re.escape, self.all)) or r"(?!)")
        self._longest = max(map(len, self.all), default=0)

    def search(self, text: str, start: int) -> re.Match[str] | None:
        return self._pattern.search(text, start)

    def partial(self, text: str, start: int) -> int:
        """Length of the longest end of `text` that is the beginning of a marker."""
        for length in range(min(self._longest - 1, len(text) - start), 0, -1):
            end = text[len(text) - length :]
            if any(marker.startswith(end) for marker in self.all):
                return length
        return 0


class Source:
    """`text[at:]` is unread. Whatever a parser makes of it depends on the characters alone, never on how they arrived."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False  # nothing more will come
        self._mark: int | None = None

    def add(self, text: str) -> None:
        keep = self.at if self._mark is None else self._mark
        self.text = self.text[keep:] + text
        self.at -= keep
        if self._mark is not None:
            self._mark = 0

    @property
    def marked(self) -> bool:
        return self._mark is not None

    def mark(self) -> None:
        """Remember this place, for `rewind`."""
        self._mark = self.at

    def rewind(self) -> None:
        """Back to the mark, which is forgotten."""
        assert self._mark is not None
        self.at, self._mark = self._mark, None

    def forget(self) -> None:
        """Forget the mark: what was read counts."""
        self._mark = None

    def peek(self) -> Steps[str]:
        """The next character, unread; nothing at the end."""
        while self.at == len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def take(self) -> Steps[str]:
        """The next character; `Malformed` at the end."""
        char = yield from self.peek()
        if not char:
            raise Malformed
        self.at += 1
        return char

    def space(self, write: Write | None = None) -> Steps[str]:
        """Reads white space, and returns the next character, unread."""
        while True:
            match = _SPACE.match(self.text, self.at)
            assert match is not None
            if write is not None and match.group():
                write(match.group())
            self.at = match.end()
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            yield

    def until(self, markers: Markers, write: Write) -> Steps[str | None]:
        """Reads up to and with the first marker and returns it, or None at the end. What stands before it goes to `write`
        as soon as it is certain that it is no part of a marker."""
        while True:
            found = markers.search(self.text, self.at)
            if found is not None:
                if found.start() > self.at:
                    write(self.text[self.at : found.start()])
                self.at = found.end()
                return found.group()
            end = len(self.text) - (0 if self.ended else markers.partial(self.text, self.at))
            if end > self.at:
                write(self.text[self.at : end])
                self.at = end
            if self.ended:
                return None
            yield

    def literal(self, text: str) -> Steps[bool]:
        """Reads `text` if it comes next; else reads nothing and returns False."""
        while len(self.text) - self.at < len(text):
            if self.ended or not text.startswith(self.text[self.at :]):
                return False
            yield
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True


def skip_to_end(source: Source, write: Write, starts: tuple[str, ...], ends: tuple[str, ...]) -> Steps[None]:
    """Reads up to and with one of `ends`, or up to one of `starts`. What stands before is left out; where neither comes, it
    goes to `write`: the end was forgotten, and an answer follows. Without `ends`, nothing is read."""
    if ends:
        skipped: list[str] = []
        found = yield from source.until(Markers(*starts, *ends), skipped.append)
        if found is None:
            write("".join(skipped))
        elif found in starts:
            source.at -= len(found)
