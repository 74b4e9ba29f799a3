"""What the compiled kernels need to know of a tensor before they get its address."""

import torch
from torch import Tensor

from minivllm import _cpu

# As `DType` in csrc/include/kernels.h.
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
CACHE_DTYPES = {**DTYPES, torch.int8: 3, torch.float8_e4m3fn: 4}


def output(out: Tensor | None, like: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
    """`out` if it fits, or a new contiguous tensor of `shape`."""
    if out is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    if out.shape != shape or out.dtype != like.dtype or not out.is_contiguous():
        raise ValueError(f"out must be contiguous {like.dtype} {list(shape)}, got {out.dtype} {list(out.shape)} {out.stride()}")
    return out


def has_dense_rows(x: Tensor) -> bool:
    """Whether x [num_tokens, heads, head_dim] is dense but for the step between tokens."""
    return x.stride(2) == 1 and x.stride(1) == x.shape[2]


def aligned(count: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised [count] that starts on a cache line, in large pages where the system gives them: for packed weights."""
    line = 64 // dtype.itemsize
    raw = torch.empty(count + line, dtype=dtype)
    _cpu.advise_huge_pages(raw.data_ptr(), raw.nbytes)
    skip = -raw.data_ptr() % 64 // dtype.itemsize
    return raw[skip : skip + count]


def input_rows(x: Tensor, shape: tuple[int, int]) -> Tensor:
    """x [..., in_features] as [num_rows, in_features] with dense rows, for a packed weight of `shape`."""
    if x.shape[-1] != shape[1]:
        raise ValueError(f"x {list(x.shape)} does not fit a weight {list(shape)}")
    rows = x.reshape(-1, shape[1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def row_indices(indices: Tensor) -> Tensor:
    """Indices of an embedding look-up, contiguous; TypeError unless they are int64."""
    if indices.dtype != torch.int64:
        raise TypeError(f"indices must be int64, got {indices.dtype}")
    return indices.contiguous()


def round_up(n: int, step: int) -> int:
    return (n + step - 1) // step * step
