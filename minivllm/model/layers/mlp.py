"""The feed-forward layer, with and without a gate."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import intermediate_share
from minivllm.kernels import Ops
from minivllm.model.layers.activation import activation, gated_activation
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.linear import Linear


class GatedMLP(Layer):
    """down(act(gate(x)) * up(x)), gate and up as one product. `reduce`: as in Linear."""

    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, size: int | None = None, reduce: bool = True):
        own = intermediate_share(size or spec.intermediate_size, ops.group)
        self.gate_up_proj = Linear(ops, spec.hidden_size, (own, own), bias=spec.mlp_bias, dtype=dtype)
        self.down_proj = Linear(ops, own, (spec.hidden_size,), bias=spec.mlp_bias, dtype=dtype, reduce=reduce)
        self._activation = gated_activation(spec.hidden_act, ops)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self._activation(self.gate_up_proj(x)))


class PlainMLP(Layer):
    """down(act(up(x)))"""

    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype):
        own = intermediate_share(spec.intermediate_size, ops.group)
        self.up_proj = Linear(ops, spec.hidden_size, (own,), bias=spec.mlp_bias, dtype=dtype)
        self.down_proj = Linear(ops, own, (spec.hidden_size,), bias=spec.mlp_bias, dtype=dtype)
        self._activation = activation(spec.hidden_act, ops)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self._activation(self.up_proj(x)))
