"""How the rows of one parameter are made up of checkpoint tensors. Read by the loader only."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


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


@dataclass(frozen=True, slots=True)
class Layout:
    """A checkpoint tensor whose elements are not in the order in which a parameter has them."""

    stored: Callable[[tuple[int, ...]], tuple[int, ...]]  # shape in the checkpoint of a tensor that we want in this shape
    convert: Callable[[Tensor], Tensor]


TRANSPOSED = Layout(lambda shape: shape[::-1], lambda tensor: tensor.t())


def grouped_heads(kv_heads: int, queries: int, dim: int) -> Layout:
    """Rows of q, k and v that stand KV head by KV head: its queries, its key, its value."""

    def convert(tensor: Tensor) -> Tensor:
        groups = tensor.view(kv_heads, queries + 2, dim, *tensor.shape[1:])
        parts = groups[:, :queries].flatten(0, 2), groups[:, queries].flatten(0, 1), groups[:, queries + 1].flatten(0, 1)
        return torch.cat(parts)

    return Layout(lambda shape: shape, convert)
