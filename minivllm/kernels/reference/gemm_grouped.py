"""Linear layers with weights of 4 or 8 bits in groups of 16 or 32 along a row: weight = value * scale + least.

A value is an integer, or what an integer stands for in one of `CODES`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minivllm.kernels.codes import CODES

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of x


@dataclass(slots=True)
class GroupedWeight:
    """As given to `pack`."""

    values: Tensor
    scales: Tensor
    least: Tensor
    bits: int
    table: Tensor | None
    order: Tensor | None


def pack(
    values: Tensor, scales: Tensor, least: Tensor, bits: int, codes: str | None = None, order: Tensor | None = None
) -> GroupedWeight:
    """What `linear` and `rows` take for a weight [out_features, in_features]; in_features is a multiple of 32.

    values: uint8 [out_features, in_features], or with 4 bits half as wide: the bytes of a group have first their low halves,
    then the high ones. scales, least: float16 [out_features, in_features / group]; group is 32 with codes. order: int64
    [in_features], which columns of x belong to the first, second, ... of these.
    """
    table = None if codes is None else CODES[codes].to(values.device)
    return GroupedWeight(values, scales, least, bits, table, None if order is None else order.to(values.device))


def linear(x: Tensor, weight: GroupedWeight, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias over the last dimension of x."""
    x = x if weight.order is None else x[..., weight.order]
    return F.linear(x, _unpack(weight, slice(None)).to(x.dtype), bias)


def rows(weight: GroupedWeight, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of the weight at int64 indices, as an embedding look-up, in `dtype`."""
    found = _unpack(weight, indices.flatten()).to(dtype)
    found = found if weight.order is None else found[:, weight.order.argsort()]
    return found.view(*indices.shape, found.shape[1])


def _unpack(weight: GroupedWeight, which: Tensor | slice) -> Tensor:
    scales, least = weight.scales[which].float(), weight.least[which].float()
    values = weight.values[which].unflatten(1, (scales.shape[1], -1))
    if weight.bits == 4:
        values = torch.cat((values & 15, values >> 4), dim=-1)
    numbers = values.float() if weight.table is None else weight.table[values.int()]
    return (numbers * scales[..., None] + least[..., None]).flatten(1)
