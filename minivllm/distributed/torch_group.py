"""`TorchGroup`: ranks by torch.distributed: NCCL between GPUs; gloo between CPUs without the extension or on other machines."""

import socket
import tempfile
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor

from minivllm.config.env import names_gloo_interface
from minivllm.distributed.groups import Place
from minivllm.kernels.communicator import Communicator, Ranges

_TIMEOUT = timedelta(minutes=5)  # to come, and for a call
_BACKLOG = 128


def connect(device: str, rendezvous: str, place: Place) -> Communicator:
    own = dist.PrefixStore(f"tensor-{place.pipeline_rank}", store(rendezvous, place))
    group = process_group(device, own, place.tensor_rank, place.tensor_size, rendezvous)
    return TorchGroup(group, place.tensor_rank, place.tensor_size)


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
    host, port = _address(rendezvous)
    listener = None
    if place.rank == 0:  # by itself it would listen at every address
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(where[:2], family=family, backlog=_BACKLOG).detach()
    return dist.TCPStore(host, port, is_master=place.rank == 0, timeout=_TIMEOUT, master_listen_fd=listener)


def process_group(device: str, of: dist.Store, rank: int, size: int, rendezvous: str) -> Any:
    if device == "cpu":
        if "://" not in rendezvous or names_gloo_interface():
            return dist.ProcessGroupGloo(of, rank, size, _TIMEOUT)
        settings = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        settings._timeout = _TIMEOUT
        settings._devices = [dist.ProcessGroupGloo.create_device(hostname=_own_address(rendezvous))]
        return dist.ProcessGroupGloo(of, rank, size, settings)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _TIMEOUT
    return dist.ProcessGroupNCCL(of, rank, size, options)


def _address(rendezvous: str) -> tuple[str, int]:
    at = urlsplit(rendezvous)
    assert at.hostname is not None and at.port is not None
    return at.hostname, at.port


def _own_address(rendezvous: str) -> str:
    """By which this machine reaches the first rank, and so can be reached. The name of a machine may mean its loopback."""
    family, _, _, _, where = socket.getaddrinfo(*_address(rendezvous), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        address: str = probe.getsockname()[0]
        return address
