"""KV cache writes on the compiled kernels."""

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import CACHE_DTYPES, DTYPES, has_dense_rows
from minivllm.kernels.kv_pages import cache_shape
from minivllm.kernels.reference import kv_write as reference


def write_kv(k: Tensor, v: Tensor, kv: Tensor, slot_mapping: Tensor, *, k_scale: float = 1.0, v_scale: float = 1.0) -> None:
    """See reference.kv_write."""
    types = k.dtype in DTYPES and v.dtype == k.dtype and kv.dtype in CACHE_DTYPES and slot_mapping.dtype == torch.int64
    rows = has_dense_rows(k) and has_dense_rows(v)
    if not (types and rows and k_scale == v_scale == 1.0 and kv.is_contiguous() and slot_mapping.is_contiguous()):
        return reference.write_kv(k, v, kv, slot_mapping, k_scale=k_scale, v_scale=v_scale)
    num_blocks, num_kv_heads, block_size, head_dim = cache_shape(kv)
    num_tokens = slot_mapping.shape[0]
    if k.shape != (num_tokens, num_kv_heads, head_dim) or v.shape != k.shape:
        raise ValueError(f"shapes do not fit: k {list(k.shape)}, v {list(v.shape)}, kv {list(kv.shape)}, {num_tokens} slots")
    call(
        _cpu.kv_write, num_tokens, DTYPES[k.dtype], CACHE_DTYPES[kv.dtype], k, v, k.stride(0), v.stride(0), kv, slot_mapping,
        num_blocks, num_kv_heads, block_size, head_dim,
    )  # fmt: skip
