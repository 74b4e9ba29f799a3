"""Normalisation: RMS on the compiled kernels, with weights as they are; the rest by torch."""

from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES, output
from minivllm.kernels.reference import norm as reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None, *, plus_one: bool = False) -> Tensor:
    """See reference.norm."""
    if plus_one or not _covers(x, weight):
        return reference.rms_norm(x, weight, eps, out, plus_one=plus_one)
    out = output(out, x, x.shape)
    cols = x.shape[-1]
    call(_cpu.norm, x.numel() // cols, DTYPES[x.dtype], x, None, weight, out, cols, eps)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
    """See reference.norm."""
    if plus_one or not _covers(x, weight) or residual.dtype != x.dtype or not residual.is_contiguous():
        return reference.add_rms_norm(x, residual, weight, eps, plus_one=plus_one)
    if residual.shape != x.shape:
        raise ValueError(f"residual {list(residual.shape)} and x {list(x.shape)} must have the same shape")
    out = output(None, x, x.shape)
    cols = x.shape[-1]
    call(_cpu.norm, x.numel() // cols, DTYPES[x.dtype], x, residual, weight, out, cols, eps)
    return out


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, plus_one: bool = False) -> Tensor:
    """See reference.norm."""
    return reference.layer_norm(x, weight, bias, eps, plus_one=plus_one)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, plus_one: bool = False
) -> Tensor:
    """See reference.norm."""
    return reference.add_layer_norm(x, residual, weight, bias, eps, plus_one=plus_one)


def _covers(x: Tensor, weight: Tensor) -> bool:
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"weight {list(weight.shape)} does not fit x {list(x.shape)}")
    return x.dtype in DTYPES and weight.dtype == x.dtype and x.is_contiguous() and weight.is_contiguous()
