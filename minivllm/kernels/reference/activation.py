"""Gated activations of the feed-forward layer."""

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """silu(gate) * up of x = [gate | up], [num_tokens, 2 * intermediate] -> [num_tokens, intermediate]."""
    gate, up = x.chunk(2, dim=-1)
    return _store(F.silu(gate) * up, out)


def gelu_and_mul(x: Tensor, out: Tensor | None = None, *, approximate: str = "tanh") -> Tensor:
    """gelu(gate) * up as above; approximate is "tanh" or "none" (the exact form by erf)."""
    gate, up = x.chunk(2, dim=-1)
    return _store(F.gelu(gate, approximate=approximate) * up, out)


def _store(result: Tensor, out: Tensor | None) -> Tensor:
    return result if out is None else out.copy_(result)
