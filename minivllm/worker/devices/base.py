"""`Device`: what the worker must know of the hardware it runs on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from minivllm.config.sections.device import DeviceConfig


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the device that this process may use in all, and that are free now."""

    total: int
    free: int


class Device(ABC):
    torch_name: str  # as in torch.device(...)

    @abstractmethod
    def __init__(self, config: DeviceConfig): ...

    @abstractmethod
    def set_up(self) -> None:
        """Once, in the thread that will compute."""

    @abstractmethod
    def memory(self) -> Memory: ...

    @abstractmethod
    def default_kv_share(self, memory: Memory) -> int:
        """Bytes for the KV cache where the user gave no figure; `memory` was measured after the weights were loaded."""
