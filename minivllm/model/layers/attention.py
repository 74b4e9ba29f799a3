"""Self-attention: merged projections, rotary embedding, and the back end of the step's context."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.context import ForwardContext
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.linear import Linear


class SelfAttention(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, index: int, cos_sin: Tensor):
        heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        sizes = (heads * dim, kv_heads * dim, kv_heads * dim)
        self.qkv_proj = Linear(ops, spec.hidden_size, sizes, bias=spec.qkv_bias, dtype=dtype)
        self.o_proj = Linear(ops, heads * dim, (spec.hidden_size,), bias=spec.o_bias, dtype=dtype)
        self._split = (heads, kv_heads, kv_heads)
        self._packed_shape = (-1, heads + 2 * kv_heads, dim)
        self._width = heads * dim
        self._index = index
        self._cos_sin = cos_sin
        self._apply_rotary = ops.rotary.apply_rotary

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        packed = self.qkv_proj(x).view(self._packed_shape)  # [num_tokens, heads of q, k and v, head_dim]
        q, k, v = packed.split_with_sizes(self._split, dim=1)
        self._apply_rotary(q, k, positions, self._cos_sin)
        out = ctx.backend.forward(q, k, v, ctx.kv_caches[self._index], ctx.metadata)
        return self.o_proj(out.view(-1, self._width))
