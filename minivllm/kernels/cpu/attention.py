"""Attention on the compiled kernels."""

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import CACHE_DTYPES, DTYPES, has_dense_rows, output
from minivllm.kernels.kv_pages import cache_shape
from minivllm.kernels.reference import attention as reference
from minivllm.kernels.texts import Texts


def paged_attention(
    q: Tensor,
    kv: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor | None = None,
    *,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Tensor:
    """See reference.attention; kv may have but one plane, of keys that are the values too."""
    dense = q.dtype in DTYPES and kv.dtype in CACHE_DTYPES and has_dense_rows(q) and kv.is_contiguous()
    by_head = [vector for vector in (sinks, alibi_slopes) if vector is not None]
    plain = k_scale == v_scale == 1.0 and all(vector.dtype == torch.float32 and vector.is_contiguous() for vector in by_head)
    if not (dense and plain):
        return reference.paged_attention(
            q, kv, block_tables, query_start, context_lens, scale, out, sliding_window=sliding_window, soft_cap=soft_cap,
            alibi_slopes=alibi_slopes, sinks=sinks, k_scale=k_scale, v_scale=v_scale,
        )  # fmt: skip
    num_blocks, num_kv_heads, block_size, head_dim = cache_shape(kv)
    num_heads = q.shape[1]
    num_seqs = context_lens.shape[0]
    if any(vector.shape != (num_heads,) for vector in by_head):
        raise ValueError(f"sinks and alibi_slopes must have {num_heads} elements, one a head")
    if q.shape[2] != head_dim or num_heads % num_kv_heads or query_start.shape != (num_seqs + 1,):
        raise ValueError(f"shapes do not fit: q {list(q.shape)}, kv {list(kv.shape)}, query_start {list(query_start.shape)}")
    if block_tables.shape[0] < num_seqs or (block_tables.shape[1] > 1 and block_tables.stride(1) != 1):
        raise ValueError(f"block_tables must have dense rows for {num_seqs} sequences, got {list(block_tables.shape)}")
    for name, tensor in (("block_tables", block_tables), ("query_start", query_start), ("context_lens", context_lens)):
        if tensor.dtype != torch.int32:
            raise TypeError(f"{name} must be int32, got {tensor.dtype}")
    out = output(out, q, q.shape)
    call(
        _cpu.attention, num_seqs, DTYPES[q.dtype], CACHE_DTYPES[kv.dtype], q, kv, out, block_tables, query_start, context_lens,
        q.stride(0), block_tables.stride(0), num_blocks, num_heads, num_kv_heads, block_size, head_dim, scale, soft_cap,
        sliding_window, sinks, alibi_slopes, len(kv) == 1,
    )  # fmt: skip
    return out


def latent_attention(
    q: Tensor, cache: Tensor, block_tables: Tensor, query_start: Tensor, context_lens: Tensor, scale: float, rank: int
) -> Tensor:
    """See reference.attention."""
    return paged_attention(q, cache, block_tables, query_start, context_lens, scale)[..., :rank]


def whole_attention(
    q: Tensor, k: Tensor, v: Tensor, texts: Texts, scale: float, out: Tensor | None = None, *, window: int = 0
) -> Tensor:
    """See reference.attention."""
    query_start = texts.query_start
    if k.shape != q.shape or v.shape != q.shape:
        raise ValueError(f"shapes do not fit: q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}")
    if query_start.dtype != torch.int32:
        raise TypeError(f"query_start must be int32, got {query_start.dtype}")
    if q.dtype not in DTYPES or any(x.dtype != q.dtype or not has_dense_rows(x) for x in (q, k, v)):
        return reference.whole_attention(q, k, v, texts, scale, out, window=window)
    out = output(out, q, q.shape)
    num_heads, head_dim = q.shape[1:]
    call(
        _cpu.whole_attention, query_start.shape[0] - 1, DTYPES[q.dtype], q, k, v, out, query_start, q.stride(0), k.stride(0),
        v.stride(0), num_heads, num_heads, head_dim, scale, window,
    )  # fmt: skip
    return out
