"""Mixture of experts in Triton: tokens sorted by expert, and one product for all experts per linear layer."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.reference import gemm_grouped
from minivllm.kernels.reference.moe import pack
from minivllm.kernels.triton.activation import gate_with_limit, silu_and_mul
from minivllm.kernels.triton.launch import LinearKind, find_owner, power_of_2

__all__ = ["mix", "pack", "pack_groups", "route"]

_KIND = LinearKind("experts", 32, 128, 64)
_MOST_SORTED = 32768  # pairs that are sorted by comparing them with each expert; more are left to torch
_SORT_BLOCK = 1024


@triton.jit
def route_kernel(
    expert_ptr, share_ptr, logits_ptr, bias_ptr, factor, EXPERTS: tl.constexpr, EXPERTS_PAD: tl.constexpr, TOP: tl.constexpr,
    TOP_PAD: tl.constexpr, SIGMOID: tl.constexpr, BIASED: tl.constexpr, RENORMALIZED: tl.constexpr,
):  # fmt: skip
    """Grid: tokens. The best expert, then the best of the others, and so on."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, EXPERTS_PAD)
    place = tl.arange(0, TOP_PAD)
    x = tl.load(logits_ptr + token * EXPERTS + at, mask=at < EXPERTS, other=-float("inf"))
    if SIGMOID:
        scores = tl.sigmoid(x)
    else:
        scores = tl.exp(x - tl.max(x, 0))
        scores = scores / tl.sum(scores, 0)
    merits = scores
    if BIASED:
        merits += tl.load(bias_ptr + at, mask=at < EXPERTS, other=0.0)
    merits = tl.where(at < EXPERTS, merits, -float("inf"))
    chosen = tl.zeros((TOP_PAD,), tl.int32)
    shares = tl.zeros((TOP_PAD,), tl.float32)
    for choice in range(0, TOP):
        best = tl.minimum(tl.argmax(merits, 0), EXPERTS - 1)  # NaN must not lead out of the weights
        chosen = tl.where(place == choice, best, chosen)
        shares = tl.where(place == choice, tl.sum(tl.where(at == best, scores, 0.0), 0), shares)
        merits = tl.where(at == best, -float("inf"), merits)
    if RENORMALIZED:
        shares = shares / (tl.sum(shares, 0) + 1e-20)
    tl.store(expert_ptr + token * TOP + place, chosen.to(tl.int64), mask=place < TOP)
    tl.store(share_ptr + token * TOP + place, shares * factor, mask=place < TOP)


@triton.jit(do_not_specialize=["num_pairs"])
def sort_kernel(order_ptr, start_ptr, expert_ptr, num_pairs, BLOCK: tl.constexpr):
    """Grid: experts, and one program more for the pairs whose expert is not here. Where the pairs of token and expert of this
    one begin in the order of the experts, and which they are. Each program reads all pairs: that takes less time than one that
    does the work of all."""
    expert = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    before = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, num_pairs, BLOCK):
        chosen = tl.load(expert_ptr + begin + at, mask=begin + at < num_pairs, other=0x7FFFFFFF)
        before += (chosen < expert).to(tl.int32)
    start = tl.sum(before, 0)
    tl.store(start_ptr + expert, start)
    for begin in range(0, num_pairs, BLOCK):
        chosen = tl.load(expert_ptr + begin + at, mask=begin + at < num_pairs, other=0x7FFFFFFF)
        mine = (chosen == expert).to(tl.int32)
        tl.store(order_ptr + start + tl.cumsum(mine, 0) - 1, (begin + at).to(tl.int64), mask=mine != 0)
        start += tl.sum(mine, 0)


def pack_groups(values: Tensor, scales: Tensor, least: Tensor, bits: int, codes: str | None, dtype: torch.dtype) -> Tensor:
    """See reference.moe. The kernel takes whole numbers: the groups are unpacked here."""
    all_rows = torch.arange(values.shape[1], device=values.device)
    packed = (gemm_grouped.pack(*parts, bits, codes) for parts in zip(values, scales, least, strict=True))
    return torch.stack([gemm_grouped.rows(weight, all_rows, dtype) for weight in packed])


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


def route(
    logits: Tensor,
    top_k: int,
    bias: Tensor | None = None,
    *,
    sigmoid: bool = False,
    renormalize: bool = False,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """See reference.moe."""
    num_tokens, num_experts = logits.shape
    experts = torch.empty((num_tokens, top_k), dtype=torch.int64, device=logits.device)
    shares = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    if num_tokens:
        route_kernel[(num_tokens,)](
            experts, shares, logits.contiguous(), logits if bias is None else bias.contiguous(), float(scale), num_experts,
            power_of_2(num_experts), top_k, power_of_2(top_k), sigmoid, bias is not None, renormalize, num_warps=1,
        )  # fmt: skip
    return experts, shares


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
    order, starts = _sort(experts.flatten(), num_experts)
    hidden = torch.empty((len(order), gate_up.shape[1]), dtype=x.dtype, device=x.device)
    _launch(hidden, x.contiguous(), gate_up, gate_up_bias, shares, starts, order, top, first=True)
    gated = gate_with_limit(hidden, limit) if limit else silu_and_mul(hidden)
    parts = torch.zeros((x.shape[0], top, down.shape[1]), dtype=x.dtype, device=x.device)
    _launch(parts, gated, down, down_bias, shares.contiguous(), starts, order, top, first=False)
    return parts.sum(1, dtype=torch.float32).to(x.dtype)


def _sort(experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """int64 [pairs]: places of the pairs in the order of their experts; int32 [num_experts + 1]: where in it each begins."""
    num_pairs, device = len(experts), experts.device
    if num_pairs > _MOST_SORTED:
        order = experts.argsort(stable=True)
        return order, torch.searchsorted(experts[order], torch.arange(num_experts + 1, device=device), out_int32=True)
    order = torch.empty(num_pairs, dtype=torch.int64, device=device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=device)
    sort_kernel[(num_experts + 1,)](order, starts, experts, num_pairs, _SORT_BLOCK, num_warps=4)
    return order, starts


def _launch(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, shares: Tensor, starts: Tensor, order: Tensor, top: int, *,
    first: bool,
) -> None:  # fmt: skip
    num_experts, n, k = weight.shape
    num_pairs = len(order)
    shape = _KIND.shape(-(-num_pairs // num_experts), n, x.dtype == torch.float32, x.device)
    expert_kernel[(num_pairs // shape.block_m + num_experts, triton.cdiv(n, shape.block_n))](
        out, x, weight, x if bias is None else bias, shares, starts, order, num_experts, num_pairs,
        n, k, top, shape.block_m, shape.block_n, shape.block_k, first, bias is not None, shape.precision,
        **shape.options,
    )  # fmt: skip
