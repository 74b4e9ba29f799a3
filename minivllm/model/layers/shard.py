"""`ShardSpec`: how the rows of one parameter are made up of checkpoint tensors. Read by the loader only."""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """Dimension 0 of a parameter is the stack of checkpoint tensors with `rows` rows each, in the order of the weight map."""

    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """Stands in a layer's attribute for a tensor that is yet to be loaded."""

    shape: tuple[int, ...]
    dtype: torch.dtype  # in which the layer gets it
    kept: torch.dtype  # in which it stays in memory, once the layer has finished loading
    shard: ShardSpec

    @property
    def kept_bytes(self) -> int:
        return math.prod(self.shape) * self.kept.itemsize
