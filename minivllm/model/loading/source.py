"""`TensorSource`: where weights come from. The loader asks for all names and shapes first, then for one tensor at a time."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from minivllm.model.quantization.grouped import Form

PARTS = ("values", "scales", "least")  # of a weight that is kept packed


class TensorSource(ABC):
    described_by = "config.json"  # what says which shapes the tensors should have

    def packed_form(self, names: tuple[str, ...]) -> Form | None:
        """In which these weights can be kept packed together, if they can."""
        return None

    def keep_packed(self, names: tuple[str, ...], form: Form) -> None:
        """Give PARTS in place of each of these weights; `part_of` says under which names."""
        raise NotImplementedError

    def is_unused(self, name: str) -> bool:
        """Whether this tensor is known to change nothing."""
        return False

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


def part_of(name: str, part: str) -> str:
    """The name of a part of a packed weight, whose own name may end in `weight`."""
    return name.removesuffix("weight") + part


def parts_of(names: Mapping[str, str], packed: tuple[str, ...]) -> dict[str, str]:
    """Of sources with other names than the one they read: names of the parts of weights, ours and theirs."""
    return {part_of(name, part): part_of(names[name], part) for name in packed for part in PARTS}
