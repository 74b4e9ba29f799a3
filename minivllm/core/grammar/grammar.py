"""`Grammar`, one text's place in a grammar, and `Compiler`, which makes them. The library behind both is in `guidance`.

Another library would be another file with two such classes.
"""

from typing import Protocol


class Grammar(Protocol):
    """Follows the tokens of one text."""

    @property
    def error(self) -> str | None:
        """What broke it; then no token may follow."""

    @property
    def ended(self) -> bool:
        """The text is complete and cannot go on."""

    @property
    def mask_size(self) -> int:
        """Bytes, a multiple of 8; the same for all grammars of a compiler."""

    def write_mask(self, row: memoryview) -> None:
        """Which tokens may come next, into `mask_size` zero bytes: bit i % 8 of byte i // 8 is token i."""

    def accept(self, token: int) -> None:
        """The text goes on with this token."""

    def copy(self) -> "Grammar":
        """Another text, now at the same place."""


class Compiler(Protocol):
    special_ids: dict[str, int]  # of all special tokens
    mask_without_end: bytes  # any token but those that end a text

    def compile(self, source: str) -> Grammar:
        """ValueError says why not."""
