"""`Board`: numbers that several API processes show each other. Each writes into its own row, and reads all."""

import mmap
import os
import tempfile
from typing import NamedTuple


class Cells(NamedTuple):
    """Some columns of the board."""

    own: "memoryview[float]"
    rows: "list[memoryview[float]]"

    def total(self, index: int = 0) -> float:
        return sum(row[index] for row in self.rows)


class Board:
    """All processes take the same cells in the same order. With one process it is a piece of that one's memory."""

    def __init__(self, num_columns: int, num_rows: int = 1, own: int = 0, memory: int | None = None):
        """`memory`: the file descriptor of the board that the first process made."""
        self.num_rows = num_rows
        self.own = own
        self.memory = _nameless_file() if memory is None and num_rows > 1 else memory
        size = 8 * num_columns * num_rows
        if self.memory is None:
            view = memoryview(bytearray(size)).cast("d")
        else:
            os.ftruncate(self.memory, size)
            view = memoryview(mmap.mmap(self.memory, size)).cast("d")
        self._rows = [view[row * num_columns : (row + 1) * num_columns] for row in range(num_rows)]
        self._num_taken = 0

    def take(self, count: int) -> Cells:
        """The next so many columns; they begin at 0."""
        begin, end = self._num_taken, self._num_taken + count
        assert end <= len(self._rows[0])
        self._num_taken = end
        rows = [row[begin:end] for row in self._rows]
        return Cells(rows[self.own], rows)


def _nameless_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
