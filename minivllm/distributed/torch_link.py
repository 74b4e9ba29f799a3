"""`TorchLink`: pipeline stages by torch.distributed: NCCL between GPUs, gloo between CPUs of several machines."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minivllm.distributed.groups import Place
from minivllm.distributed.pipeline import Link
from minivllm.distributed.torch_group import process_group, store


def connect(device: str, rendezvous: str, place: Place, hidden_size: int, dtype: torch.dtype) -> Link:
    own = dist.PrefixStore(f"pipeline-{place.tensor_rank}", store(rendezvous, place))
    group = process_group(device, own, place.pipeline_rank, place.pipeline_size, rendezvous)
    return TorchLink(group, place.pipeline_rank, torch.empty((0, hidden_size), dtype=dtype, device=device))


class TorchLink(Link):
    def __init__(self, group: Any, stage: int, empty: Tensor):
        """group: a process group of the stages. empty: hidden states of no tokens."""
        self._group = group
        self._stage = stage
        self._empty = empty

    def send(self, hidden: Tensor) -> None:
        self._group.send([hidden], self._stage + 1, 0).wait()

    def receive(self, num_tokens: int) -> Tensor:
        received = self._empty.new_empty((num_tokens, self._empty.shape[1]))
        self._group.recv([received], self._stage - 1, 0).wait()
        return received
