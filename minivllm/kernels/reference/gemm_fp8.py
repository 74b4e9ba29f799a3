"""Linear layers with weights in 8-bit floats (e4m3), scaled by row or by blocks of 128 x 128; x is rounded to such floats, too,
with a scale for each token, or for each 128 columns of it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 128
TOP = 448.0  # the greatest float of the type
_NOTHING = 1e-30  # that the greatest number of a row counts as, so that a row of zeros has a scale


@dataclass(slots=True)
class Fp8Weight:
    """data times scales, [out_features, in_features]."""

    data: Tensor  # float8_e4m3fn
    scales: Tensor  # fp32 [out_features or blocks of them, 1 or blocks of in_features]

    @property
    def rows_of_scale(self) -> int:
        """Rows of the weight that share a row of scales."""
        return 1 if len(self.scales) == len(self.data) else BLOCK

    @property
    def columns_of_scale(self) -> int:
        return self.data.shape[1] if self.scales.shape[1] == 1 else BLOCK

    def unpack(self) -> Tensor:
        """fp32 [out_features, in_features]"""
        count, columns = self.data.shape
        scales = self.scales.repeat_interleave(self.rows_of_scale, 0)[:count]
        return self.data.float() * scales.repeat_interleave(self.columns_of_scale, 1)[:, :columns]

    def rows(self, which: Tensor) -> "Fp8Weight":
        """Of the given rows only."""
        return Fp8Weight(self.data[which], self.scales[which // self.rows_of_scale])


def is_native(device: torch.device) -> bool:
    """Whether `linear` multiplies these floats as they are there, which is what makes it worth while."""
    return False


def pack(weight: Tensor, scales: Tensor, dtype: torch.dtype) -> Fp8Weight:
    """What `linear` and `rows` take for a weight, float8_e4m3fn [out_features, in_features], that is multiplied by `scales`.

    scales: one number, or [rows, columns] with a row for each of the weight's rows or for every 128 of them, and a column for
    all of its columns or for every 128 of them. dtype: of the activations.
    """
    scales = scales.float().expand(len(weight), 1) if scales.numel() == 1 else scales.float()
    return Fp8Weight(weight.contiguous(), scales.contiguous())


def linear(x: Tensor, weight: Fp8Weight, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias over the last dimension of x, in its type; what is not finite makes its whole row so. Where a device
    gains nothing from rounding x, it does not."""
    out = F.linear(_rounded(x, weight.columns_of_scale), weight.unpack())
    return (out if bias is None else out + bias.float()).to(x.dtype)


def rows(weight: Fp8Weight, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of the weight at int64 indices, as an embedding look-up, in `dtype`."""
    return weight.rows(indices.flatten()).unpack().to(dtype).view(*indices.shape, weight.data.shape[1])


def _rounded(x: Tensor, width: int) -> Tensor:
    """fp32, every `width` columns with a scale of their own."""
    columns = x.shape[-1]
    groups = F.pad(x.float(), (0, -columns % width)).unflatten(-1, (-1, width))
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(_NOTHING)
    largest = largest + (largest - largest)  # NaN for infinity
    factor = torch.full_like(largest, TOP) / largest  # a plain number would be multiplied by the reciprocal
    return ((groups * factor).to(torch.float8_e4m3fn).float() * (largest / TOP)).flatten(-2)[..., :columns]
