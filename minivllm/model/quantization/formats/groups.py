"""`Groups`: what every quantized weight of a checkpoint comes to, whatever its parts are called there."""

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from minivllm.kernels.codes import CODES
from minivllm.model.quantization.grouped import Form, pack_values

_BAND = 1 << 16  # weights made at once: what is made on the way stays in the cache


@dataclass(slots=True)
class Grid:
    """How the codes of a weight share scales."""

    rows: int
    columns: int
    size: int  # columns with one scale; the last group of a row may have fewer
    bits: int = 4
    codes: str | None = None  # what codes stand for, by name; None: themselves
    index: Tensor | None = None  # int64 [columns]: the group of each, where they are not in order

    @property
    def order(self) -> Tensor | None:
        """int64 [columns]: the columns group by group."""
        return None if self.index is None else self.index.argsort(stable=True)

    @property
    def form(self) -> Form | None:
        """In which the weight can be multiplied packed."""
        group = gcd(self.size, 32)
        even = self.index is None or bool((self.index.bincount() == self.size).all())
        fits = self.columns % 32 == 0 and group >= (16 if self.codes is None else 32)
        return Form(self.bits, group, self.codes) if fits and even else None


@dataclass(slots=True)
class Groups:
    """weight = (value - zero) * scale; a value is what its code stands for."""

    grid: Grid
    codes: Tensor  # uint8 [rows, columns]
    scales: Tensor  # fp32 [rows, groups]
    zeros: Tensor | float = 0.0  # likewise

    def weight(self, dtype: torch.dtype) -> Tensor:
        rows, columns = self.codes.shape
        out, step = torch.empty((rows, columns), dtype=dtype), max(1, _BAND // columns)
        table = None if self.grid.codes is None else CODES[self.grid.codes]
        for begin in range(0, rows, step):
            band = slice(begin, begin + step)
            values = self.codes[band].float() if table is None else table[self.codes[band].int()]
            zeros = self._spread(self.zeros[band]) if isinstance(self.zeros, Tensor) else self.zeros
            out[band] = (values - zeros) * self._spread(self.scales[band])
        return out

    def _spread(self, numbers: Tensor) -> Tensor:
        """A number of each group to one of each column."""
        if self.grid.index is not None:
            return numbers[:, self.grid.index]
        return numbers.repeat_interleave(self.grid.size, dim=1)[:, : self.grid.columns]

    def packed(self, form: Form) -> dict[str, Tensor]:
        """values, scales and least as gemm_grouped takes them, columns group by group. Infinite where they are too large."""
        order, columns = self.grid.order, self.grid.columns
        values = self.codes if order is None else self.codes[:, order]
        repeats, groups = self.grid.size // form.group, columns // form.group
        scales, least = (
            numbers.half().repeat_interleave(repeats, dim=1)[:, :groups] for numbers in (self.scales, self.scales * -self.zeros)
        )
        return {"values": pack_values(values, form), "scales": scales, "least": least}


def row_groups(numbers: Tensor, grid: Grid, block_rows: int = 0) -> Tensor:
    """One number for a whole weight, for each row, for each group, or for each block of so many rows → fp32 [rows, groups]."""
    numbers = numbers.float()
    if numbers.numel() == 1:
        return numbers.reshape(1, 1).expand(grid.rows, 1)
    if block_rows:
        return numbers.repeat_interleave(block_rows, dim=0)[: grid.rows]
    return numbers.reshape(grid.rows, -1)


def unpack(words: Tensor, bits: int) -> Tensor:
    """int32 [..., n] → uint8 [..., n * 32 / bits], lowest bits first."""
    found = words.contiguous().view(torch.uint8)
    return halves(found) if bits == 4 else found


def halves(packed: Tensor) -> Tensor:
    """uint8 [..., n] → [..., 2 n], low half first."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
