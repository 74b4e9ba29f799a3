"""Activations of the feed-forward layer, with and without a gate."""

from collections.abc import Callable
from functools import partial

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


def activate(x: Tensor, kind: str) -> Tensor:
    """Element by element; kind is a key of ACTIVATIONS."""
    return ACTIVATIONS[kind](x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def _store(result: Tensor, out: Tensor | None) -> Tensor:
    return result if out is None else out.copy_(result)
