"""How hidden states get from one pipeline stage to the next. Made by the worker, used by its runner and input builder."""

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm.distributed.groups import Place
from minivllm.ipc.shm_ring import RingReader, RingWriter


def layer_range(num_layers: int, pipeline_rank: int, pipeline_size: int) -> tuple[int, int]:
    """First layer of a stage, and the one after its last. Where they do not divide evenly the first stages have one more: the
    last one has the output head.
    """
    even, rest = divmod(num_layers, pipeline_size)
    begin = pipeline_rank * even + min(pipeline_rank, rest)
    return begin, begin + even + (pipeline_rank < rest)


def connect_stages(
    device: str, rendezvous: str, place: Place, ends: "LinkEnds", hidden_size: int, dtype: torch.dtype
) -> "Link | None":
    """None if there is but one stage. rendezvous: as for `communicator.connect`; a name is one for `ends`."""
    if place.pipeline_size == 1:
        return None
    if "://" not in rendezvous:
        return SharedMemoryLink(ends, hidden_size, dtype)
    module = importlib.import_module("minivllm.distributed.torch_link")  # torch.distributed is not always needed
    link: Link = module.connect(device, rendezvous, place, hidden_size, dtype)
    return link


class Link(ABC):
    """The neighbours of a stage. Sums of the residual stream are sent, one row a token, in the order of the steps."""

    @abstractmethod
    def send(self, hidden: Tensor) -> None:
        """To the stage after: [num_tokens, hidden_size], contiguous."""

    @abstractmethod
    def receive(self, num_tokens: int) -> Tensor:
        """From the stage before; the receiver's to change. EOFError or RuntimeError if that is gone."""


@dataclass(frozen=True, slots=True)
class LinkEnds:
    """Of the shared memory between this stage and its neighbours, if there are any."""

    previous: RingReader | None = None
    following: RingWriter | None = None


NO_ENDS = LinkEnds()


class SharedMemoryLink(Link):
    def __init__(self, ends: LinkEnds, hidden_size: int, dtype: torch.dtype):
        self._ends = ends
        self._hidden_size = hidden_size
        self._dtype = dtype

    def send(self, hidden: Tensor) -> None:
        assert self._ends.following is not None
        self._ends.following.write(hidden.view(torch.uint8).numpy().data.cast("B"))

    def receive(self, num_tokens: int) -> Tensor:
        assert self._ends.previous is not None
        received = torch.frombuffer(self._ends.previous.read(), dtype=self._dtype).view(-1, self._hidden_size)
        assert len(received) == num_tokens, "the stages are not in the same step"
        return received
