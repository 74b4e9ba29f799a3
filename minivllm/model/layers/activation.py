"""Gated activations by their names in config.json."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from minivllm.errors import ConfigError
from minivllm.kernels import Ops


def gated_activation(name: str, ops: Ops) -> Callable[[Tensor], Tensor]:
    """[num_tokens, 2 * size] = [gate | up] -> act(gate) * up."""
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": ops.activation.silu_and_mul,
        "swish": ops.activation.silu_and_mul,
        "gelu": partial(ops.activation.gelu_and_mul, approximate="none"),
        "gelu_new": ops.activation.gelu_and_mul,
        "gelu_pytorch_tanh": ops.activation.gelu_and_mul,
    }
    if name not in known:
        raise ConfigError(f"hidden_act {name!r} is not supported (supported: {', '.join(known)}).", param="model")
    return known[name]
