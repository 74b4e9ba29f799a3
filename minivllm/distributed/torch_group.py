"""`TorchGroup`: ranks by torch.distributed: NCCL between GPUs; gloo between CPUs without the extension or on other machines."""

import tempfile
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor

from minivllm.distributed.groups import Place
from minivllm.kernels.communicator import Communicator, Ranges

_TIMEOUT = timedelta(minutes=5)  # to come, and for a call


def connect(device: str, rendezvous: str, place: Place) -> Communicator:
    own = dist.PrefixStore(f"tensor-{place.pipeline_rank}", store(rendezvous, place))
    return TorchGroup(process_group(device, own, place.tensor_rank, place.tensor_size), place.tensor_rank, place.tensor_size)


class TorchGroup(Communicator):
    """On a process group of its own, not torch's global one."""

    is_recordable = False

    def __init__(self, group: Any, rank: int, size: int):
        self.rank, self.size = rank, size
        self._group = group

    def all_reduce(self, x: Tensor) -> Tensor:
        self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: Tensor, ranges: Ranges) -> Tensor:
        """Ranks send equally many columns, the narrower ones some that mean nothing."""
        width = max(end - begin for begin, end in ranges)
        own = x.new_zeros((x.shape[0], width))
        own[:, : x.shape[1]] = x
        parts = [torch.empty_like(own) for _ in ranges]
        self._group.allgather([parts], [own]).wait()
        out = x.new_empty((x.shape[0], max(end for _, end in ranges)))
        for part, (begin, end) in zip(parts, ranges, strict=True):
            out[:, begin:end] = part[:, : end - begin]
        return out

    def close(self) -> None:
        self._group.abort()


@cache
def store(rendezvous: str, place: Place) -> dist.Store:
    """Where the workers of one engine core leave word for each other; one in a process. See `communicator.connect`."""
    if "://" not in rendezvous:
        return dist.FileStore(str(Path(tempfile.gettempdir()) / rendezvous))
    at = urlsplit(rendezvous)
    assert at.hostname is not None and at.port is not None
    return dist.TCPStore(at.hostname, at.port, is_master=place.rank == 0, timeout=_TIMEOUT)


def process_group(device: str, of: dist.Store, rank: int, size: int) -> Any:
    if device == "cpu":
        return dist.ProcessGroupGloo(of, rank, size, _TIMEOUT)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _TIMEOUT
    return dist.ProcessGroupNCCL(of, rank, size, options)
