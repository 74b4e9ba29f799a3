"""The paged KV cache as kernels see it: [2, num_blocks, num_kv_heads, block_size, head_dim], keys and then values.

In int8 the last dimension is SCALE_BYTES larger: each page, that is each block and KV head, holds block_size rows of head_dim
numbers and then the fp32 scales of these rows. A number times its row's scale is the value.
"""

import torch
from torch import Tensor

SCALE_BYTES = 4


def row_width(head_dim: int, dtype: torch.dtype) -> int:
    return head_dim + (SCALE_BYTES if dtype == torch.int8 else 0)


def cache_shape(kv: Tensor) -> tuple[int, int, int, int]:
    """num_blocks, num_kv_heads, block_size and head_dim."""
    _, num_blocks, num_kv_heads, block_size, width = kv.shape
    return num_blocks, num_kv_heads, block_size, width - row_width(0, kv.dtype)


def parts(pages: Tensor) -> tuple[Tensor, Tensor]:
    """Views of int8 pages: the numbers [..., block_size, head_dim] and the scales' bytes [..., block_size, SCALE_BYTES]."""
    block_size, width = pages.shape[-2:]
    head_dim = width - SCALE_BYTES
    rows, scales = pages.view(*pages.shape[:-2], -1).split([block_size * head_dim, block_size * SCALE_BYTES], dim=-1)
    return rows.unflatten(-1, (block_size, head_dim)), scales.unflatten(-1, (block_size, SCALE_BYTES))


def as_floats(pages: Tensor) -> Tensor:
    """fp32 values of pages in any type."""
    if pages.dtype != torch.int8:
        return pages.float()
    rows, scales = parts(pages)
    return rows * scales.contiguous().view(torch.float32)
