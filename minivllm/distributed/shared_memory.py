"""`SharedMemory`: ranks on the CPU of one machine, by the compiled extension; see csrc/include/shared_group.h."""

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.distributed.groups import Place
from minivllm.kernels.communicator import Communicator, Ranges
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES

_FOLDER = "/dev/shm"  # files in memory, where the system has it


def connect(device: str, rendezvous: str, place: Place) -> Communicator:
    return SharedMemory(f"{rendezvous}-{place.pipeline_rank}", place.tensor_rank, place.tensor_size)


class SharedMemory(Communicator):
    """Its calls can be recorded like those of other ops."""

    def __init__(self, name: str, rank: int, size: int):
        assert 0 <= rank < size <= _cpu.MAX_RANKS
        folder = _FOLDER if os.access(_FOLDER, os.W_OK) else tempfile.gettempdir()
        self.rank, self.size = rank, size
        self._group = _cpu.SharedGroup(str(Path(folder) / name), rank, size)
        self._ranges: dict[tuple[tuple[int, int], ...], Tensor] = {}  # kept, since recorded calls have their addresses

    def all_reduce(self, x: Tensor) -> Tensor:
        if x.dtype not in DTYPES or not x.is_contiguous():
            raise TypeError(f"all_reduce takes contiguous float tensors, got {x.dtype} {list(x.shape)} {x.stride()}")
        columns = x.shape[-1]
        call(_cpu.all_reduce, x.numel() // columns, self._group.address, DTYPES[x.dtype], x, columns)
        return x

    def all_gather(self, x: Tensor, ranges: Ranges) -> Tensor:
        begin, end = ranges[self.rank]
        if x.dim() != 2 or x.shape[1] != end - begin or x.stride(1) != 1 or len(ranges) != self.size:
            raise ValueError(f"x {list(x.shape)} {x.stride()} does not fit {ranges}")
        columns = max(end for _, end in ranges)
        key = tuple(ranges)
        if key not in self._ranges:
            self._ranges[key] = torch.tensor(ranges)
        out = torch.empty((x.shape[0], columns), dtype=x.dtype)
        call(_cpu.all_gather, x.shape[0], self._group.address, x, x.stride(0), out, columns, self._ranges[key], x.itemsize)
        return out

    def close(self) -> None:
        self._group.leave()
