"""`Communicator`: how the ranks that share each layer add and join what they computed. `minivllm.distributed` has its forms."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

Ranges = Sequence[tuple[int, int]]  # begin and end of each rank's columns


class Communicator(ABC):
    """All ranks make the same calls in the same order. A rank that is gone makes them fail with RuntimeError."""

    rank: int = 0
    size: int = 1
    is_recordable: bool = True  # as part of a program of native ops

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """x = sum over the ranks, the same bits for all of them; x, which is contiguous, comes back."""

    @abstractmethod
    def all_gather(self, x: Tensor, ranges: Ranges) -> Tensor:
        """x: this rank's columns [rows, end - begin] -> everybody's [rows, columns]. Columns of several ranks are the same."""

    @abstractmethod
    def close(self) -> None:
        """Nothing follows; others who wait for this rank fail."""


class Alone(Communicator):
    """The only one."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, ranges: Ranges) -> Tensor:
        return x

    def close(self) -> None:
        """Nobody waits."""


ALONE = Alone()
