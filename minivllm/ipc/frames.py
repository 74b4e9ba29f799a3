"""One length-prefixed blob on a pipe: the config that the launcher writes to a new core's stdin; on sockets between engines."""

from typing import BinaryIO, Protocol

_LENGTH_BYTES = 8  # big endian


class ByteReader(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def write_frame(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    pipe.flush()


def read_frame(pipe: ByteReader, limit: int | None = None) -> bytes:
    """Blocks until the frame is complete; EOFError if the writer went away before, ValueError if it is longer than `limit`."""
    size = int.from_bytes(_read_exactly(pipe, _LENGTH_BYTES), "big")
    if limit is not None and size > limit:
        raise ValueError(f"a frame of {size} bytes is too long")
    return _read_exactly(pipe, size)


def _read_exactly(pipe: ByteReader, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = pipe.read(size - len(data))
        if not more:
            raise EOFError("the pipe was closed in the middle of a frame")
        data += more
    return data
