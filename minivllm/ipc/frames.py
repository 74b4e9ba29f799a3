"""One length-prefixed blob on a pipe: the config that the launcher writes to a new core's stdin."""

from typing import BinaryIO

_LENGTH_BYTES = 8  # big endian


def write_frame(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    pipe.flush()


def read_frame(pipe: BinaryIO) -> bytes:
    """Blocks until the frame is complete; EOFError if the writer went away before."""
    return _read_exactly(pipe, int.from_bytes(_read_exactly(pipe, _LENGTH_BYTES), "big"))


def _read_exactly(pipe: BinaryIO, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = pipe.read(size - len(data))
        if not more:
            raise EOFError("the pipe was closed in the middle of a frame")
        data += more
    return data
