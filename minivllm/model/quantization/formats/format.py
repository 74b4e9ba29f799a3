"""`Format`: how a kind of checkpoint holds a quantized weight in several tensors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor

from minivllm.config.quantization import StoredWeights
from minivllm.errors import ConfigError
from minivllm.model.loading.source import TensorSource
from minivllm.model.quantization.formats.groups import Grid, Groups


class Parts:
    """The tensors of one weight, by what their names end in."""

    def __init__(self, source: TensorSource, shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str]):
        self.names = names
        self._source = source
        self._shapes = shapes

    def __contains__(self, end: str) -> bool:
        return end in self.names

    def shape(self, end: str) -> tuple[int, ...]:
        if end not in self.names:
            some = max(self.names.values(), key=len)
            raise ConfigError(f"the checkpoint lacks {end.lstrip('._')}, which belongs to {some}.", param="model")
        return tuple(self._shapes[self.names[end]])

    def expect(self, end: str, *shapes: tuple[int, ...]) -> None:
        if self.shape(end) not in shapes:
            self.refuse(end, f"has the shape {list(self.shape(end))}, {list(shapes[-1])} is expected")

    def groups(self, end: str, columns: int, groups: int) -> int:
        """The columns of each group, when this tensor has so many groups."""
        if groups < 1 or columns % groups:
            self.refuse(end, f"has {groups} groups for {columns} columns")
        return columns // groups

    def refuse(self, end: str, why: str) -> NoReturn:
        raise ConfigError(f"the checkpoint does not fit its quantization_config: {self.names[end]} {why}.", param="model")

    def read(self, end: str) -> Tensor:
        self.shape(end)
        return self._source.read(self.names[end])


class Format(ABC):
    """`ends`: what the names of a weight's tensors end in; those of `marks` say that it is quantized, and tensors with those of
    `unused` are of no use. `weight`: what the name of the weight would end in.
    """

    ends: tuple[str, ...]
    marks: tuple[str, ...]
    unused: tuple[str, ...] = (".input_scale", ".input_zero_point")  # of activations in 8 bits
    weight = ".weight"

    def __init__(self, stored: StoredWeights):
        self._stored = stored

    @abstractmethod
    def grid(self, parts: Parts) -> Grid:
        """From shapes and small tensors; ConfigError if the tensors do not fit together."""

    @abstractmethod
    def groups(self, parts: Parts, grid: Grid) -> Groups:
        """The weight."""

    def shape(self, parts: Parts, rows: int, columns: int) -> tuple[int, ...]:
        """In which an ordinary checkpoint has what `grid` says is [rows, columns]."""
        return rows, columns

    def arrange(self, parts: Parts, tensor: Tensor) -> Tensor:
        """[rows, columns] in that shape."""
        return tensor


def group_index(parts: Parts, end: str, size: int, groups: int) -> Tensor | None:
    """The group of each column as this tensor has it, if it is there and says more than that they are in order."""
    if end not in parts:
        return None
    found = parts.read(end).long()
    if found.min() < 0 and end != ".g_idx":
        return None  # compressed-tensors: it was never set
    if found.min() < 0 or found.max() >= groups:
        parts.refuse(end, f"names other groups than the {groups} that there are")
    return None if found.equal(torch.arange(len(found)) // size) else found
