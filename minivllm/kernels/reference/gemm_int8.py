"""Linear layers with int8 weights: one scale per output row of the weight, x in 16 bits with one scale per row; exact sums."""

from dataclasses import dataclass

import torch
from torch import Tensor

_TOP_WEIGHT = 127.0
_TOP_X = 127.0 * 256  # leaves room for the upper byte, rounded, in signed 8 bits
_NOTHING = 1e-30  # a row without anything larger is zero


@dataclass(slots=True)
class Int8Weight:
    """About data * scales, [out_features, in_features]."""

    data: Tensor  # int8
    scales: Tensor  # fp32 [out_features, 1]


def pack(weight: Tensor) -> Int8Weight:
    """What `linear` and `rows` take for a weight [out_features, in_features]; it does not refer to it."""
    data, scales = _quantize(weight, _TOP_WEIGHT)
    return Int8Weight(data.to(torch.int8), scales)


def linear(x: Tensor, weight: Int8Weight, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias over the last dimension of x, in its type; infinities and NaN make their row NaN."""
    data, scales = _quantize(x, _TOP_X)
    sums = (data.double() @ weight.data.double().T).float()  # integers, exact in fp64
    out = sums * scales * weight.scales[:, 0]
    return (out if bias is None else out + bias.float()).to(x.dtype)


def rows(weight: Int8Weight, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of the weight at int64 indices, as an embedding look-up, in `dtype`."""
    return (weight.data[indices].float() * weight.scales[indices]).to(dtype)


def _quantize(x: Tensor, top: float) -> tuple[Tensor, Tensor]:
    """Integers within [-top, top], in fp32, and the scales [..., 1] that make x of them again."""
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True)
    largest = torch.where(largest < _NOTHING, 0.0, largest + (largest - largest))  # NaN for infinity
    # `top / largest` would round twice: torch makes it reciprocal times top.
    inverse = torch.where(largest == 0, 0.0, torch.full_like(largest, top) / largest)
    return (x * inverse).round().nan_to_num(0.0), largest / top
