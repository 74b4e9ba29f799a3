"""`TensorSource`: where weights come from. The loader asks for all names and shapes first, then for one tensor at a time."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor


class TensorSource(ABC):
    described_by = "config.json"  # what says which shapes the tensors should have

    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """All tensors of the checkpoint, from its headers alone."""

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """The tensor in the checkpoint's type. It may be a view of the file: good until `release`, and not to be kept."""

    @abstractmethod
    def release(self, name: str) -> None:
        """The tensor is not needed any more; let go of its memory."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""
