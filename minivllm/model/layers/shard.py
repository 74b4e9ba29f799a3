"""How one parameter is made up of checkpoint tensors. Read by the loader only."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm.config.shares import Share, whole


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The share of each dimension of a checkpoint tensor. Where a dimension has several, the parameter is along it the stack of
    so many tensors, in the order of the weight map, each with its share; the checkpoint may have them stacked already.
    """

    dims: tuple[tuple[Share, ...], ...]

    @classmethod
    def of(cls, dims: Sequence["Dim"]) -> "ShardSpec":
        return cls(tuple(tuple(map(as_share, dim)) if isinstance(dim, tuple) else (as_share(dim),) for dim in dims))

    @property
    def stacked_dim(self) -> int:
        return next((index for index, shares in enumerate(self.dims) if len(shares) > 1), 0)

    @property
    def stacked(self) -> tuple[Share, ...]:
        return self.dims[self.stacked_dim]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the parameter."""
        return tuple(sum(share.size for share in shares) for shares in self.dims)

    def stored_shapes(self, count: int) -> list[tuple[int, ...]]:
        """Of `count` checkpoint tensors, as many as are stacked or one."""
        along = [share.whole for share in self.stacked]
        wholes = [sum(share.whole for share in shares) for shares in self.dims]
        at = self.stacked_dim
        return [(*wholes[:at], size, *wholes[at + 1 :]) for size in (along if count > 1 else [sum(along)])]

    def cut(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """Views of what the parameter stacks, from checkpoint tensors; None for those of which it takes nothing."""
        at = self.stacked_dim
        if len(tensors) < len(self.stacked):
            assert tensors[0] is not None
            tensors = tensors[0].split_with_sizes([share.whole for share in self.stacked], dim=at)
        pieces = []
        for tensor, along in zip(tensors, self.stacked, strict=True):
            if along.size and tensor is not None:
                for dim, shares in enumerate(self.dims):
                    share = along if dim == at else shares[0]
                    if not share.is_whole:
                        tensor = tensor.narrow(dim, share.begin, share.size)
                pieces.append(tensor)
        return pieces


Dim = int | Share | tuple[int | Share, ...]  # all of a dimension, a share of it, or the shares that are stacked along it


def as_share(size: int | Share) -> Share:
    return whole(size) if isinstance(size, int) else size


@dataclass(frozen=True, slots=True)
class Parameter:
    """Stands in a layer's attribute for a tensor that is yet to be loaded."""

    dtype: torch.dtype  # in which the layer gets it
    kept_bits: float  # of an element in memory, once the layer has finished loading
    shard: ShardSpec

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shard.shape

    @property
    def kept_bytes(self) -> int:
        return int(math.prod(self.shape) * self.kept_bits / 8)


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
