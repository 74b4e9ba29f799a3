"""Mixture of experts on the compiled kernels: the tokens of an expert as one product."""

import torch
from torch import Tensor

from minivllm.kernels.cpu import activation, gemm, gemm_grouped
from minivllm.kernels.reference import moe as reference

Weight = gemm.PackedLinear | gemm_grouped.PackedGroups | Tensor


def pack(weight: Tensor) -> list[Weight]:
    """See reference.moe."""
    return [gemm.pack(one) for one in weight]


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
    return reference.route(logits, top_k, bias, sigmoid=sigmoid, renormalize=renormalize, scale=scale)


def pack_groups(
    values: Tensor, scales: Tensor, least: Tensor, bits: int, codes: str | None, dtype: torch.dtype
) -> list[Weight]:
    """See reference.moe."""
    return [gemm_grouped.pack(*parts, bits, codes) for parts in zip(values, scales, least, strict=True)]


def mix(
    x: Tensor,
    experts: Tensor,
    shares: Tensor,
    gate_up: list[Weight],
    down: list[Weight],
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    limit: float = 0.0,
) -> Tensor:
    """See reference.moe."""
    sent, order = experts.flatten().sort(stable=True)
    tokens = order // experts.shape[1]
    counts = torch.bincount(sent, minlength=len(gate_up))[: len(gate_up)].tolist()
    rows, results, begin = x[tokens], [], 0
    for expert, count in enumerate(counts):
        if count:
            bias = None if gate_up_bias is None else gate_up_bias[expert]
            hidden = _linear(rows[begin : begin + count], gate_up[expert], bias)
            hidden = reference._gated(hidden, limit) if limit else activation.silu_and_mul(hidden)
            results.append(_linear(hidden, down[expert], None if down_bias is None else down_bias[expert]))
            begin += count
    total = torch.zeros(x.shape, dtype=torch.float32)
    if results:
        total.index_add_(0, tokens[:begin], torch.cat(results).float() * shares.flatten()[order[:begin], None])
    return total.to(x.dtype)


def _linear(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    if isinstance(weight, gemm_grouped.PackedGroups):
        return gemm_grouped.linear(x, weight, bias)
    return gemm.linear(x, weight, bias)
