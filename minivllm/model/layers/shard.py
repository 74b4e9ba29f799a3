"""`ShardSpec`: how the rows of one parameter are made up of checkpoint tensors. Read by the loader only."""

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
    dtype: torch.dtype
    shard: ShardSpec
