"""RMS normalisation, alone and fused with the residual addition before it."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """weight * (x / rms(x)) over the last dimension; statistics in fp32, the quotient rounded to x.dtype first."""
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return torch.mul(weight, normed, out=out)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place, then rms_norm(residual)."""
    residual += x
    return rms_norm(residual, weight, eps)
