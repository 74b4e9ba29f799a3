"""`Staging`: the arrays of a step in one copy from host memory that the device reads by itself, while the host goes on."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes; kernels are compiled for addresses that are multiples of 16
# A copy waits in line behind the step before it, and a step has up to five: with fewer buffers, the host would have to wait for
# the end of a step to plan the next but one.
_BUFFERS = 12


class Staging:
    def __init__(self, allocate: Callable[[int], Tensor], send: Callable[[Tensor], tuple[Tensor, Callable[[], None]]]):
        """allocate: uint8 host memory. send: begins to copy it; gives the copy, and a function that waits for its end."""
        self._allocate = allocate
        self._send = send
        self._buffers: list[Tensor | None] = [None] * _BUFFERS
        self._waits: list[Callable[[], None] | None] = [None] * _BUFFERS
        self._turn = 0

    def send(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        """On the device, of the same shapes and types."""
        arrays = [np.ascontiguousarray(array) for array in arrays]
        places, size = [], 0
        for array in arrays:
            places.append(size)
            size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        host = self._buffer(size)
        for array, place in zip(arrays, places, strict=True):
            host.numpy()[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
        copy, self._waits[self._turn] = self._send(host[:size])
        self._turn = (self._turn + 1) % _BUFFERS
        return [
            copy[place : place + array.nbytes].view(torch.from_numpy(array).dtype).view(array.shape)
            for array, place in zip(arrays, places, strict=True)
        ]

    def _buffer(self, size: int) -> Tensor:
        wait = self._waits[self._turn]
        if wait is not None:
            wait()
        buffer = self._buffers[self._turn]
        if buffer is None or len(buffer) < size:
            buffer = self._allocate(2 * size)
            self._buffers[self._turn] = buffer
        return buffer
