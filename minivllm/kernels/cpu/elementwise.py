"""Sums and multiples of activations on the compiled kernels."""

from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES
from minivllm.kernels.reference import elementwise as reference


def scale(x: Tensor, factor: float) -> Tensor:
    """See reference.elementwise."""
    if not _covers(x):
        return reference.scale(x, factor)
    cols = x.shape[-1]
    call(_cpu.scale_add, x.numel() // cols, DTYPES[x.dtype], x, None, cols, factor)
    return x


def add(x: Tensor, y: Tensor) -> Tensor:
    """See reference.elementwise."""
    if x.shape != y.shape:
        raise ValueError(f"x {list(x.shape)} and y {list(y.shape)} must have the same shape")
    if not _covers(x) or not _covers(y) or x.dtype != y.dtype:
        return reference.add(x, y)
    cols = x.shape[-1]
    call(_cpu.scale_add, x.numel() // cols, DTYPES[x.dtype], x, y, cols, 1.0)
    return x


def _covers(x: Tensor) -> bool:
    return x.dtype in DTYPES and x.is_contiguous() and x.shape[-1] > 0
