"""The block formats of GGUF: what the bytes of a block say, as values in groups.

A weight is (value - zero) * scale, or value * scale + least where blocks have a least; `group` weights of a row share a scale.
Functions take uint8 [blocks, bytes of a block]. The layouts are those of ggml (github.com/ggml-org/ggml, src/ggml-common.h); a
block of a K format has 256 weights in 8 or 16 groups.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from minivllm.model.quantization.grouped import Form, pack_values

# The values of IQ4_NL and IQ4_XS by their 4-bit codes, plus 128.
_IQ4 = torch.tensor([1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241], dtype=torch.uint8)

Read = Callable[[Tensor], Tensor]


class Format(NamedTuple):
    form: Form  # the smallest that holds it
    values: Read  # -> uint8 [blocks, weights]
    scale: Read  # -> float32 [blocks, groups]
    zero: int = 0
    least: Read | None = None  # -> float32 [blocks, groups]
    packed_at: int | None = None  # the byte where the values begin, if they lie there as we keep them

    def unpack(self, b: Tensor) -> Tensor:
        """float32 [blocks, weights]"""
        scale = self.scale(b)[:, :, None]
        values = self.values(b).float().view(len(b), scale.shape[1], -1)
        weights = (values - self.zero) * scale if self.least is None else (values * scale).add_(self.least(b)[:, :, None])
        return weights.flatten(1)

    def pack_values(self, b: Tensor, form: Form) -> Tensor:
        """uint8 [blocks, weights * bits / 8]; `form` holds at least what `self.form` does."""
        if self.packed_at is not None and form == self.form:
            return b[:, self.packed_at :]
        return pack_values(self.values(b), form)

    def pack_scales(self, b: Tensor, form: Form) -> Tensor:
        """float16 [blocks, groups]"""
        return self.scale(b).repeat_interleave(self.form.group // form.group, dim=1).half()

    def pack_least(self, b: Tensor, form: Form) -> Tensor:
        """float16 [blocks, groups]; infinite where it is too large for that."""
        least = self.scale(b) * -self.zero if self.least is None else self.least(b)
        return least.repeat_interleave(self.form.group // form.group, dim=1).half()


def _q5_0(b: Tensor) -> Tensor:
    return _nibbles(b[:, 6:]) | _bits(b[:, 2:6]) << 4


def _q5_1(b: Tensor) -> Tensor:
    return _nibbles(b[:, 8:]) | _bits(b[:, 4:8]) << 4


def _q3_k(b: Tensor) -> Tensor:
    return _pairs(b[:, 32:96]) | _top_bits(b[:, :32]) << 2


def _q3_k_scale(b: Tensor) -> Tensor:
    packed = b[:, 96:108]
    low, high = _halves(packed[:, :8]), _pairs(packed[:, 8:], 4)
    return _half(b, 108) * ((low | high << 4).float() - 32)


def _q5_k(b: Tensor) -> Tensor:
    return _halves(b[:, 48:], 32) | _top_bits(b[:, 16:48]) << 4


def _q6_k(b: Tensor) -> Tensor:
    return _halves(b[:, :128], 64) | _pairs(b[:, 128:192]) << 4


def _k_scale(b: Tensor) -> Tensor:
    """Of Q4_K and Q5_K: eight pairs of 6 bits in 12 bytes."""
    return _half(b, 0) * torch.cat((b[:, 4:8] & 63, (b[:, 12:16] & 15) | b[:, 4:8] >> 6 << 4), dim=1).float()


def _k_least(b: Tensor) -> Tensor:
    return _half(b, 2) * -torch.cat((b[:, 8:12] & 63, b[:, 12:16] >> 4 | b[:, 8:12] >> 6 << 4), dim=1).float()


def _iq4_xs_scale(b: Tensor) -> Tensor:
    low = torch.stack((b[:, 4:8] & 15, b[:, 4:8] >> 4), dim=2).flatten(1)
    high = (b[:, 2:4, None] >> _shifts(2, 4)[:, 0] & 3).flatten(1)
    return _half(b, 0) * ((low | high << 4).float() - 32)


def _half(b: Tensor, at: int = 0) -> Tensor:
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


def _top_bits(b: Tensor) -> Tensor:
    """The lowest bit of every byte, then the next one of every byte, ..."""
    return (b[:, None] >> _shifts(1, 8) & 1).flatten(1)


def _shifts(step: int, count: int) -> Tensor:
    return torch.arange(0, step * count, step, dtype=torch.uint8)[:, None]


FORMATS: dict[str, Format] = {
    "Q4_0": Format(Form(4, 32), lambda b: _nibbles(b[:, 2:]), _half, zero=8, packed_at=2),
    "Q4_1": Format(Form(4, 32), lambda b: _nibbles(b[:, 4:]), _half, least=lambda b: _half(b, 2), packed_at=4),
    "Q5_0": Format(Form(8, 32), _q5_0, _half, zero=16),
    "Q5_1": Format(Form(8, 32), _q5_1, _half, least=lambda b: _half(b, 2)),
    "Q8_0": Format(Form(8, 32), lambda b: b[:, 2:] ^ 128, _half, zero=128),
    "Q2_K": Format(
        Form(4, 16),
        lambda b: _pairs(b[:, 16:80]),
        lambda b: _half(b, 80) * (b[:, :16] & 15).float(),
        least=lambda b: _half(b, 82) * -(b[:, :16] >> 4).float(),
    ),
    "Q3_K": Format(Form(4, 16), _q3_k, _q3_k_scale, zero=4),
    "Q4_K": Format(Form(4, 32), lambda b: _halves(b[:, 16:], 32), _k_scale, least=_k_least),
    "Q5_K": Format(Form(8, 32), _q5_k, _k_scale, least=_k_least),
    "Q6_K": Format(Form(8, 16), _q6_k, lambda b: _half(b, 208) * b[:, 192:208].view(torch.int8).float(), zero=32),
    "IQ4_NL": Format(Form(8, 32), lambda b: _IQ4[_nibbles(b[:, 2:]).int()], _half, zero=128),
    "IQ4_XS": Format(Form(8, 32), lambda b: _IQ4[_halves(b[:, 8:], 16).int()], _iq4_xs_scale, zero=128),
}
