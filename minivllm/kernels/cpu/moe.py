"""Mixture of experts on the compiled kernels: the tokens of an expert as one product."""

import torch
from torch import Tensor

from minivllm.kernels.cpu import activation, gemm
from minivllm.kernels.reference import moe as reference


def pack(weight: Tensor) -> list[gemm.PackedLinear | Tensor]:
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


def mix(
    x: Tensor,
    experts: Tensor,
    shares: Tensor,
    gate_up: list[gemm.PackedLinear | Tensor],
    down: list[gemm.PackedLinear | Tensor],
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
            hidden = gemm.linear(rows[begin : begin + count], gate_up[expert], bias)
            hidden = reference._gated(hidden, limit) if limit else activation.silu_and_mul(hidden)
            results.append(gemm.linear(hidden, down[expert], None if down_bias is None else down_bias[expert]))
            begin += count
    total = torch.zeros(x.shape, dtype=torch.float32)
    if results:
        total.index_add_(0, tokens[:begin], torch.cat(results).float() * shares.flatten()[order[:begin], None])
    return total.to(x.dtype)
