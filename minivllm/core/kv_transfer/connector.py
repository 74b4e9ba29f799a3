"""`KVConnector`: how segments get from a producer to a consumer. Who may have which of them is `exchange`'s affair."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence

from minivllm.config.sections.kv_transfer import KVTransferConfig
from minivllm.core.kv_transfer.segment import Segment
from minivllm.errors import MinivllmError
from minivllm.messages.kv_transfer import KVTransferParams


class TransferError(MinivllmError):
    """Blocks cannot be had; one line that says why. The prompt is computed instead."""


class KVConnector(ABC):
    """All but the first two are called from threads, with sockets whose operations end after a while by a TimeoutError."""

    @abstractmethod
    def __init__(self, config: KVTransferConfig, rank: int):
        """For core `rank` of those that share the configuration."""

    @abstractmethod
    def listen(self) -> socket.socket:
        """A producer's socket. OSError if the address is not to be had."""

    @abstractmethod
    def address(self) -> KVTransferParams:
        """Where consumers find it."""

    @abstractmethod
    def connect(self, address: KVTransferParams, timeout: float) -> socket.socket:
        """Only to where the operator allows it: the address comes from a client."""

    @abstractmethod
    def send(self, peer: socket.socket, segments: Sequence[Segment]) -> None: ...

    @abstractmethod
    def receive(self, peer: socket.socket, sizes: Sequence[int], deadline: float) -> list[Segment]:
        """Segments of exactly these sizes, by time.monotonic() = `deadline`."""
