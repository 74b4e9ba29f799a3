"""Rotary position embedding on the compiled kernels."""

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES, has_dense_rows
from minivllm.kernels.reference import rotary as reference


def apply_rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, *, interleaved: bool = False) -> None:
    """See reference.rotary."""
    tables = cos_sin.dtype == torch.float32 and positions.dtype == torch.int64 and positions.is_contiguous()
    rows = q.dtype in DTYPES and k.dtype == q.dtype and has_dense_rows(q) and has_dense_rows(k)
    if not (tables and rows and cos_sin.is_contiguous()):
        return reference.apply_rotary(q, k, positions, cos_sin, interleaved=interleaved)
    num_tokens, num_heads, head_dim = q.shape
    rotary_dim = cos_sin.shape[1]
    if k.shape[0] != num_tokens or k.shape[2] != head_dim or positions.shape != (num_tokens,) or rotary_dim > head_dim:
        raise ValueError(
            f"shapes do not fit: q {list(q.shape)}, k {list(k.shape)}, "
            f"positions {list(positions.shape)}, cos_sin {list(cos_sin.shape)}"
        )
    call(
        _cpu.rotary, num_tokens, DTYPES[q.dtype], q, k, q.stride(0), k.stride(0), positions, cos_sin, num_heads, k.shape[1],
        head_dim, rotary_dim, interleaved,
    )  # fmt: skip
