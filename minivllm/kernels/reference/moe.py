"""Mixture of experts: every token goes through the feed-forward layers that it was sent to."""

import torch
import torch.nn.functional as F
from torch import Tensor

from minivllm.kernels.reference import gemm_grouped


def pack(weight: Tensor) -> Tensor:
    """What `mix` takes for the weights [num_experts, out_features, in_features] of one linear layer of all experts."""
    return weight


def route(
    logits: Tensor,
    top_k: int,
    bias: Tensor | None = None,
    *,
    sigmoid: bool = False,
    renormalize: bool = False,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """fp32 [num_tokens, num_experts] -> experts of each token, int64 [num_tokens, top_k], best first, and shares, fp32 alike.

    Scores are softmax or sigmoid of the logits. bias, fp32 [num_experts], counts for the choice, not for the shares. Shares are
    scores, made to sum to 1 if they are renormalized, times scale.
    """
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    experts = (scores if bias is None else scores + bias).topk(top_k, dim=-1).indices
    shares = scores.gather(1, experts)
    if renormalize:
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    return experts, shares * scale


def pack_groups(
    values: Tensor, scales: Tensor, least: Tensor, bits: int, codes: str | None, dtype: torch.dtype
) -> list[gemm_grouped.GroupedWeight]:
    """The same for weights in groups, each tensor [num_experts, ...] of what gemm_grouped.pack takes; `dtype`: of x."""
    return [gemm_grouped.pack(*parts, bits, codes) for parts in zip(values, scales, least, strict=True)]


def mix(
    x: Tensor,
    experts: Tensor,
    shares: Tensor,
    gate_up: Tensor | list[gemm_grouped.GroupedWeight],
    down: Tensor | list[gemm_grouped.GroupedWeight],
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    limit: float = 0.0,
) -> Tensor:
    """Sum over a token's experts of share * down(silu(gate(x)) * up(x)); summed in fp32.

    x: [num_tokens, hidden_size]; experts: int64 [num_tokens, top_k], num_experts for one that is not here; shares: fp32 alike.
    Packed weights: gate_up [num_experts, 2 * size, hidden_size], down [num_experts, hidden_size, size]; biases [num_experts,
    out_features]. With a limit, as gpt-oss has it: gate at most that, up within plus and minus it, then gate * sigmoid(1.702 *
    gate) * (up + 1).
    """
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in experts.unique().tolist():
        if expert >= len(gate_up):
            break
        tokens, choices = (experts == expert).nonzero(as_tuple=True)
        hidden = _linear(x[tokens], gate_up[expert], None if gate_up_bias is None else gate_up_bias[expert])
        result = _linear(_gated(hidden, limit), down[expert], None if down_bias is None else down_bias[expert])
        total.index_add_(0, tokens, result.float() * shares[tokens, choices, None])
    return total.to(x.dtype)


def _linear(x: Tensor, weight: Tensor | gemm_grouped.GroupedWeight, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias) if isinstance(weight, Tensor) else gemm_grouped.linear(x, weight, bias)


def _gated(hidden: Tensor, limit: float) -> Tensor:
    gate, up = hidden.chunk(2, dim=-1)
    if not limit:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(gate * 1.702) * (up + 1)
