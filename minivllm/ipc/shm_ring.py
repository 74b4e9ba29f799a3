"""Messages from one process to several through shared memory: `RingWriter` and `RingReader`, of executor and workers.

A message is copied in once, however many read it. Readers look again and again for a moment, then sleep until their bell rings.

    line 0: pieces written │ for each reader: pieces read, asleep │ piece 0 │ piece 1 │ …     a line is 64 bytes

A piece is a line with its length and whether more follow, then its bytes. Nothing of it has a name, so nothing is left behind
when all processes have gone, however they went.
"""

import contextlib
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

_PIECES = 16
_PIECE_BYTES = 1 << 18
_LINE = 64
_WORDS = _LINE // 8
_SPIN_SECONDS = 1e-4  # about what a core needs between two steps
_FULL_SECONDS = 1e-4  # between looks at a full ring
_yield: Callable[[], None] = getattr(os, "sched_yield", partial(time.sleep, 0))


@dataclass(frozen=True, slots=True)
class Ring:
    """File descriptors, for the processes at both ends; each closes, or never gets, those of the others."""

    memory: int
    bells: tuple[int, ...]  # where each reader listens
    ropes: tuple[int, ...]  # where the writer rings it


def open_ring(num_readers: int) -> Ring:
    memory = _nameless_file()
    os.ftruncate(memory, _begin(num_readers, _PIECES))
    pipes = [os.pipe() for _ in range(num_readers)]
    return Ring(memory, tuple(bell for bell, _ in pipes), tuple(rope for _, rope in pipes))


class RingWriter:
    def __init__(self, memory: int, ropes: Sequence[int]):
        self._map = mmap.mmap(memory, 0)
        self._memory = memoryview(self._map)
        self._words = self._memory.cast("Q")
        self._ropes = ropes
        self._written = 0
        for rope in ropes:
            os.set_blocking(rope, False)

    def write(self, data: "bytes | bytearray | memoryview") -> None:
        """Waits while a reader is so far behind that there is no room."""
        view = memoryview(data)
        for begin in range(0, max(len(view), 1), _PIECE_BYTES):
            self._write_piece(view[begin : begin + _PIECE_BYTES], begin + _PIECE_BYTES < len(view))

    def _write_piece(self, piece: memoryview, more: bool) -> None:
        readers = range(len(self._ropes))
        while self._written - min(self._words[_read_word(reader)] for reader in readers) >= _PIECES:
            time.sleep(_FULL_SECONDS)
        begin = _begin(len(self._ropes), self._written % _PIECES)
        self._memory[begin + _LINE : begin + _LINE + len(piece)] = piece
        self._words[begin // 8] = len(piece) << 1 | more
        _fence()
        self._written += 1
        self._words[0] = self._written
        _fence()
        for reader in readers:
            if self._words[_read_word(reader) + _WORDS]:
                with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it rings already; it is gone
                    os.write(self._ropes[reader], b"\0")

    def close(self) -> None:
        """Let readers find that nothing more will come. May be called twice."""
        for rope in self._ropes:
            os.close(rope)
        self._ropes = ()
        self._words.release()
        self._memory.release()
        self._map.close()


class RingReader:
    def __init__(self, memory: int, bell: int, index: int = 0, num_readers: int = 1):
        self._memory = memoryview(mmap.mmap(memory, 0))
        self._words = self._memory.cast("Q")
        self._bell = bell
        self._num_readers = num_readers
        self._word = _read_word(index)
        self._read = 0

    def read(self) -> bytearray:
        """The next message. EOFError if the writer's process is gone."""
        message = bytearray()
        more = True
        while more:
            self._wait()
            begin = _begin(self._num_readers, self._read % _PIECES)
            header = self._words[begin // 8]
            message += self._memory[begin + _LINE : begin + _LINE + (header >> 1)]
            more = bool(header & 1)
            _fence()
            self._read += 1
            self._words[self._word] = self._read
        return message

    def _wait(self) -> None:
        end = time.perf_counter() + _SPIN_SECONDS
        while self._words[0] == self._read:
            if time.perf_counter() < end:
                _yield()
            else:
                self._sleep()
        _fence()

    def _sleep(self) -> None:
        asleep = self._word + _WORDS
        self._words[asleep] = 1
        _fence()
        if self._words[0] == self._read and not os.read(self._bell, 1 << 12):
            raise EOFError("the writer of a ring has gone")
        self._words[asleep] = 0


def _begin(num_readers: int, piece: int) -> int:
    return (1 + 2 * num_readers) * _LINE + piece * (_LINE + _PIECE_BYTES)


def _read_word(reader: int) -> int:
    return (1 + 2 * reader) * _WORDS


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("minivllm-ring")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


_lock = threading.Lock()


def _fence() -> None:
    """What was written before is seen before what is written after: taking and releasing a lock orders memory."""
    with _lock:
        pass
