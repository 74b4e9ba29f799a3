"""RMS normalisation on the compiled kernels."""

from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES, output
from minivllm.kernels.reference import norm as reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """See reference.norm."""
    if not _covers(x, weight):
        return reference.rms_norm(x, weight, eps, out)
    out = output(out, x, x.shape)
    cols = x.shape[-1]
    call(_cpu.norm, x.numel() // cols, DTYPES[x.dtype], x, None, weight, out, cols, eps)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See reference.norm."""
    if not _covers(x, weight) or residual.dtype != x.dtype or not residual.is_contiguous():
        return reference.add_rms_norm(x, residual, weight, eps)
    if residual.shape != x.shape:
        raise ValueError(f"residual {list(residual.shape)} and x {list(x.shape)} must have the same shape")
    out = output(None, x, x.shape)
    cols = x.shape[-1]
    call(_cpu.norm, x.numel() // cols, DTYPES[x.dtype], x, residual, weight, out, cols, eps)
    return out


def _covers(x: Tensor, weight: Tensor) -> bool:
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"weight {list(weight.shape)} does not fit x {list(x.shape)}")
    return x.dtype in DTYPES and weight.dtype == x.dtype and x.is_contiguous() and weight.is_contiguous()
