"""Mixture of experts in Triton: tokens sorted by expert, and one product for all experts per linear layer."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.reference.moe import pack
from minivllm.kernels.triton.activation import gate_with_limit, silu_and_mul
from minivllm.kernels.triton.launch import find_owner, linear_shape

__all__ = ["mix", "pack"]


@triton.jit(do_not_specialize=["num_pairs"])
def expert_kernel(
    out_ptr, x_ptr, weight_ptr, bias_ptr, share_ptr, start_ptr, order_ptr, num_experts, num_pairs,
    N: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    FIRST: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of pairs of token and expert, in the order of the experts; blocks of the weight's rows.

    FIRST: x has a row for each token, and out one for each pair in this order. Otherwise x is such an out, and rows come out at
    the pair's place in [tokens, TOP], multiplied by its share.
    """
    block = tl.program_id(0)
    expert = find_owner(start_ptr, num_experts, block, BLOCK_M)
    start = tl.load(start_ptr + expert)
    end = tl.load(start_ptr + expert + 1)
    begin = start + (block - start // BLOCK_M - expert) * BLOCK_M
    if begin >= end:
        return
    at = begin + tl.arange(0, BLOCK_M)
    real = at < end
    pair = tl.load(order_ptr + at, mask=real, other=0)
    source = (pair // TOP if FIRST else at).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + source[:, None] * K + k[None, :]
    weight_ptrs = weight_ptr + (expert.to(tl.int64) * N + n)[None, :] * K + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for offset in range(0, K, BLOCK_K):
        inside = k < K - offset
        x = tl.load(x_ptrs + offset, mask=real[:, None] & inside[None, :], other=0.0)
        weight = tl.load(weight_ptrs + offset, mask=(n < N)[None, :] & inside[:, None], other=0.0)
        acc = tl.dot(x, weight, acc, input_precision=PRECISION)
    if BIASED:
        acc += tl.load(bias_ptr + expert.to(tl.int64) * N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if not FIRST:
        acc *= tl.load(share_ptr + pair, mask=real, other=0.0)[:, None]
    target = (at if FIRST else pair).to(tl.int64)
    out_ptrs = out_ptr + target[:, None] * N + n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=real[:, None] & (n < N)[None, :])


def mix(
    x: Tensor,
    experts: Tensor,
    shares: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    limit: float = 0.0,
) -> Tensor:
    """See reference.moe. The host does not wait to know how many tokens an expert has."""
    if not x.shape[0]:
        return torch.empty_like(x)
    num_experts, top = gate_up.shape[0], experts.shape[1]
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    starts = torch.searchsorted(flat[order], torch.arange(num_experts + 1, device=x.device), out_int32=True)
    hidden = torch.empty((len(flat), gate_up.shape[1]), dtype=x.dtype, device=x.device)
    _launch(hidden, x.contiguous(), gate_up, gate_up_bias, shares, starts, order, top, first=True)
    gated = gate_with_limit(hidden, limit) if limit else silu_and_mul(hidden)
    parts = torch.empty((x.shape[0], top, down.shape[1]), dtype=x.dtype, device=x.device)
    _launch(parts, gated, down, down_bias, shares.contiguous(), starts, order, top, first=False)
    return parts.sum(1, dtype=torch.float32).to(x.dtype)


def _launch(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, shares: Tensor, starts: Tensor, order: Tensor, top: int, *,
    first: bool,
) -> None:  # fmt: skip
    num_experts, n, k = weight.shape
    num_pairs, wide = len(order), x.dtype == torch.float32
    shape = linear_shape(-(-num_pairs // num_experts), n, wide, x.device)
    block_k = 32 if wide else 128 if shape.block_m <= 32 else 64
    expert_kernel[(num_pairs // shape.block_m + num_experts, triton.cdiv(n, shape.block_n))](
        out, x, weight, x if bias is None else bias, shares, starts, order, num_experts, num_pairs,
        n, k, top, shape.block_m, shape.block_n, block_k, first, bias is not None, "tf32x3" if wide else "tf32",
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
