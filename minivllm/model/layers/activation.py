"""Activations by their names in config.json."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from minivllm.errors import ConfigError
from minivllm.kernels import Ops

# What the same function is called here.
_KINDS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


def activation(name: str, ops: Ops) -> Callable[[Tensor], Tensor]:
    """act(x)"""
    return partial(ops.activation.activate, kind=_kind(name))


def gated_activation(name: str, ops: Ops) -> Callable[[Tensor], Tensor]:
    """[num_tokens, 2 * size] = [gate | up] -> act(gate) * up."""
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": ops.activation.silu_and_mul,
        "gelu": partial(ops.activation.gelu_and_mul, approximate="none"),
        "gelu_tanh": ops.activation.gelu_and_mul,
    }
    kind = _kind(name)
    if kind not in known:
        raise ConfigError(f"hidden_act {name!r} is not supported in a gated feed-forward layer.", param="model")
    return known[kind]


def _kind(name: str) -> str:
    if name not in _KINDS:
        raise ConfigError(f"hidden_act {name!r} is not supported (supported: {', '.join(_KINDS)}).", param="model")
    return _KINDS[name]
