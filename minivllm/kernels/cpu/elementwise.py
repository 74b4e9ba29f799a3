"""Sums and multiples of activations, and rows of a part of a table, on the compiled kernels."""

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES, row_indices
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


def indices_in(indices: Tensor, begin: int, end: int) -> Tensor:
    """See reference.elementwise."""
    indices = row_indices(indices)
    out = torch.empty_like(indices)
    call(_cpu.indices_in, indices.numel(), indices, out, begin, end)
    return out


def clear_outside(x: Tensor, indices: Tensor, begin: int, end: int) -> Tensor:
    """See reference.elementwise."""
    if not x.is_contiguous():
        return reference.clear_outside(x, indices, begin, end)
    call(_cpu.clear_outside, len(x), x, row_indices(indices), x.shape[1] * x.itemsize, begin, end)
    return x


def _covers(x: Tensor) -> bool:
    return x.dtype in DTYPES and x.is_contiguous() and x.shape[-1] > 0
