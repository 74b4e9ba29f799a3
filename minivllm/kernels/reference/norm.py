"""RMS and layer normalisation, alone and fused with the residual addition before it."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None, *, plus_one: bool = False) -> Tensor:
    """weight * (x / rms(x)) over the last dimension; statistics in fp32, the quotient rounded to x.dtype first.

    With plus_one the factor is weight + 1, and only the product is rounded, as Gemma has it.
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if plus_one:
        product = (normed * (weight.float() + 1)).to(x.dtype)
        return product if out is None else out.copy_(product)
    return torch.mul(weight, normed.to(x.dtype), out=out)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
    """residual += x in place, then rms_norm(residual)."""
    residual += x
    return rms_norm(residual, weight, eps, plus_one=plus_one)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, plus_one: bool = False) -> Tensor:
    """weight * (x - mean(x)) / deviation(x) + bias over the last dimension, in fp32. weight and bias: as x in its last
    dimensions, or None. With plus_one the factor is weight + 1.
    """
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    result = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        result *= weight.float() + plus_one
    if bias is not None:
        result += bias.float()
    return result.to(x.dtype)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, plus_one: bool = False
) -> Tensor:
    """residual += x in place, then layer_norm(residual)."""
    residual += x
    return layer_norm(residual, weight, bias, eps, plus_one=plus_one)
