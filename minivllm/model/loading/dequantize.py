"""The block formats of GGUF, unpacked: from bytes to float32 weights.

Each function takes uint8 [blocks, bytes of a block] and returns float32 [blocks, weights of a block]. The layouts are those of
ggml (github.com/ggml-org/ggml, src/ggml-common.h); a block of a K format has 256 weights in 8 or 16 groups.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# The values of IQ4_NL and IQ4_XS by their 4-bit codes.
_IQ4 = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.float32)


def q4_0(b: Tensor) -> Tensor:
    return _half(b, 0) * (_nibbles(b[:, 2:]).float() - 8)


def q4_1(b: Tensor) -> Tensor:
    return _half(b, 0) * _nibbles(b[:, 4:]).float() + _half(b, 2)


def q5_0(b: Tensor) -> Tensor:
    return _half(b, 0) * ((_nibbles(b[:, 6:]) | _bits(b[:, 2:6]) << 4).float() - 16)


def q5_1(b: Tensor) -> Tensor:
    return _half(b, 0) * (_nibbles(b[:, 8:]) | _bits(b[:, 4:8]) << 4).float() + _half(b, 2)


def q8_0(b: Tensor) -> Tensor:
    return _half(b, 0) * b[:, 2:].view(torch.int8).float()


def q2_k(b: Tensor) -> Tensor:
    scales = b[:, :16]
    scale, least = _half(b, 80) * (scales & 15).float(), _half(b, 82) * (scales >> 4).float()
    return _grouped(_pairs(b[:, 16:80]).float(), scale, least)


def q3_k(b: Tensor) -> Tensor:
    mask, packed = b[:, :32], b[:, 96:108]
    low = _halves(packed[:, :8])
    high = _pairs(packed[:, 8:], 4)
    scale = _half(b, 108) * ((low | high << 4).float() - 32)
    top = (mask[:, None] >> _shifts(1, 8) & 1).flatten(1)
    return _grouped((_pairs(b[:, 32:96]) | top << 2).float() - 4, scale)


def q4_k(b: Tensor) -> Tensor:
    scale, least = _scales_and_mins(b)
    return _grouped(_halves(b[:, 16:], 32).float(), scale, least)


def q5_k(b: Tensor) -> Tensor:
    scale, least = _scales_and_mins(b)
    top = (b[:, None, 16:48] >> _shifts(1, 8) & 1).flatten(1)
    return _grouped((_halves(b[:, 48:], 32) | top << 4).float(), scale, least)


def q6_k(b: Tensor) -> Tensor:
    scale = _half(b, 208) * b[:, 192:208].view(torch.int8).float()
    return _grouped((_halves(b[:, :128], 64) | _pairs(b[:, 128:192]) << 4).float() - 32, scale)


def iq4_nl(b: Tensor) -> Tensor:
    return _half(b, 0) * _IQ4[_nibbles(b[:, 2:]).int()]


def iq4_xs(b: Tensor) -> Tensor:
    low = torch.stack((b[:, 4:8] & 15, b[:, 4:8] >> 4), dim=2).flatten(1)
    high = (b[:, 2:4, None] >> _shifts(2, 4)[:, 0] & 3).flatten(1)
    scale = _half(b, 0) * ((low | high << 4).float() - 32)
    return _grouped(_IQ4[_halves(b[:, 8:], 16).int()], scale)


FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
}


def _half(b: Tensor, at: int) -> Tensor:
    """A float16 of each block -> float32 [blocks, 1]"""
    return b[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(b: Tensor) -> Tensor:
    """All low nibbles, then all high ones."""
    return torch.cat((b & 15, b >> 4), dim=1)


def _halves(b: Tensor, run: int = 8) -> Tensor:
    """Of each `run` bytes the low nibbles, then the high ones."""
    b = b.reshape(len(b), -1, 1, run)
    return torch.cat((b & 15, b >> 4), dim=2).flatten(1)


def _pairs(b: Tensor, run: int = 32) -> Tensor:
    """Of each `run` bytes their lowest two bits, then the next two, ..."""
    return (b.reshape(len(b), -1, 1, run) >> _shifts(2, 4) & 3).flatten(1)


def _bits(b: Tensor) -> Tensor:
    """Every bit of every byte, lowest first."""
    return (b[:, :, None] >> _shifts(1, 8)[:, 0] & 1).flatten(1)


def _shifts(step: int, count: int) -> Tensor:
    return torch.arange(0, step * count, step, dtype=torch.uint8)[:, None]


def _scales_and_mins(b: Tensor) -> tuple[Tensor, Tensor]:
    """Of Q4_K and Q5_K: eight 6-bit pairs in 12 bytes -> float32 [blocks, 8] each"""
    first, second, third = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = torch.cat((first & 63, (third & 15) | first >> 6 << 4), dim=1)
    mins = torch.cat((second & 63, third >> 4 | second >> 6 << 4), dim=1)
    return _half(b, 0) * scales.float(), _half(b, 2) * mins.float()


def _grouped(values: Tensor, scale: Tensor, least: Tensor | None = None) -> Tensor:
    """values * scale - least, with one scale for each group of consecutive values."""
    grouped = values.view(len(values), scale.shape[1], -1) * scale[:, :, None]
    return (grouped if least is None else grouped.sub_(least[:, :, None])).flatten(1)
