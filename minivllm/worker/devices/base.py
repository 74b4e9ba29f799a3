"""`Device`: what the worker must know of the hardware it runs on."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minivllm.config.sections.device import DeviceConfig


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the device that this process may use in all, and that are free now."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Captured:
    """A function that the device can repeat by itself: on what then is in its inputs, into the same result."""

    replay: Callable[[], None]
    result: Tensor


class Device(ABC):
    torch_name: str  # as in torch.device(...)
    captures: bool = False  # whether `capture` works
    shared: bool = False  # whether all workers on a machine take from the same memory
    overlaps: bool = False  # whether the host may plan and begin a step while the device is busy with the one before
    warm_up_lengths: Sequence[int] = ()  # of prompts that the first requests must not be the first to try

    @abstractmethod
    def __init__(self, config: DeviceConfig, index: int = 0, count: int = 1):
        """For worker `index` of `count` on this machine."""

    @abstractmethod
    def set_up(self) -> None:
        """Once, in the thread that will compute."""

    @abstractmethod
    def memory(self) -> Memory: ...

    @abstractmethod
    def default_kv_share(self, memory: Memory) -> int:
        """Bytes for the KV cache where the user gave no figure; `memory` was measured after the weights were loaded."""

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """Memory that `run` takes at its peak beyond what is kept; 0, without a run, where it need not be set aside."""
        return 0

    def fp8_refusal(self) -> str | None:
        """Why nothing can be kept in floats of 8 bits; None if it can."""
        return None

    def send(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        """The arrays of a step on the device, of the same shapes and types."""
        return [torch.from_numpy(array) for array in arrays]

    def fetch(self, tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Begin to bring tensors to the host, behind all that is begun; the function waits for that, and for nothing later."""
        found = list(tensors)
        return lambda: found

    def capture(self, function: Callable[[], Tensor]) -> Captured:
        """`function` made repeatable. It must neither wait for the device nor read what is on it."""
        raise NotImplementedError
