"""The feed-forward layer, with and without a gate."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.layers.activation import activation, gated_activation
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.linear import Linear


class GatedMLP(Layer):
    """down(act(gate(x)) * up(x)), gate and up as one product."""

    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, size: int | None = None):
        size = size or spec.intermediate_size
        self.gate_up_proj = Linear(ops, spec.hidden_size, (size, size), bias=spec.mlp_bias, dtype=dtype)
        self.down_proj = Linear(ops, size, (spec.hidden_size,), bias=spec.mlp_bias, dtype=dtype)
        self._activation = gated_activation(spec.hidden_act, ops)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self._activation(self.gate_up_proj(x)))


class PlainMLP(Layer):
    """down(act(up(x)))"""

    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype):
        self.up_proj = Linear(ops, spec.hidden_size, (spec.intermediate_size,), bias=spec.mlp_bias, dtype=dtype)
        self.down_proj = Linear(ops, spec.intermediate_size, (spec.hidden_size,), bias=spec.mlp_bias, dtype=dtype)
        self._activation = activation(spec.hidden_act, ops)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self._activation(self.up_proj(x)))
