"""Self-attention: merged projections, rotary embedding, and the back end of the step's context."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import all_ranks, head_shares
from minivllm.kernels import Ops
from minivllm.model.attention.backend import AttentionForm
from minivllm.model.context import ForwardContext
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.linear import Linear
from minivllm.model.layers.norm import Norm, make_head_norm
from minivllm.model.layers.rotary import Rotary


class SelfAttention(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, index: int, rotary: Rotary):
        heads, kv_heads = head_shares(spec, ops.group)
        q, kv = heads.times(spec.head_dim), kv_heads.times(spec.head_dim)
        self.qkv_proj = Linear(ops, spec.hidden_size, (q, kv, kv), bias=spec.qkv_bias, dtype=dtype)
        self.o_proj = Linear(ops, q, (spec.hidden_size,), bias=spec.o_bias, dtype=dtype)
        self.q_norm: Norm | None = make_head_norm(spec, ops, heads, dtype) if spec.qk_norm else None
        self.k_norm: Norm | None = make_head_norm(spec, ops, kv_heads, dtype) if spec.qk_norm else None
        self.sinks: Tensor | None = self.declare(heads, dtype=dtype) if spec.attention_sinks else None
        self.k_scale, self.v_scale = 1.0, 1.0  # of a cache in floats of 8 bits; the loader may know better
        self._spec = spec
        self._group = ops.group
        self._split = (heads.size, kv_heads.size, kv_heads.size)
        self._index = index
        self._turn = rotary.of(spec.layers[index].rope)
        slopes = torch.tensor(spec.alibi_slopes)[heads.begin : heads.end]
        self._alibi_slopes = slopes.to(rotary.device) if len(slopes) else None

    def finish_loading(self) -> None:
        spec = self._spec
        scale = spec.attention_scale or spec.head_dim**-0.5
        self._form = AttentionForm(
            scale=scale / (self._index + 1) if spec.scale_by_layer else scale,
            window=spec.layers[self._index].window,
            soft_cap=spec.attention_soft_cap,
            sinks=None if self.sinks is None else self.sinks.float(),
            alibi_slopes=self._alibi_slopes,
            k_scale=self.k_scale,
            v_scale=self.v_scale,
        )

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        packed = self.qkv_proj(x).view(-1, sum(self._split), self._spec.head_dim)
        q, k, v = packed.split_with_sizes(self._split, dim=1)  # [num_tokens, heads, head_dim]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self._normalise(self.q_norm, q, 0), self._normalise(self.k_norm, k, 1)
        if self._spec.clip_qkv:
            for part in (q, k, v):
                part.clamp_(-self._spec.clip_qkv, self._spec.clip_qkv)
        if self._turn is not None:
            self._turn(q, k, positions)
        out = ctx.backend.forward(q, k, v, ctx.kv_caches[self._index], ctx.metadata, self._form)
        return self.o_proj(out.flatten(1))

    def _normalise(self, norm: Norm, x: Tensor, which: int) -> Tensor:
        """`which`: 0 for queries, 1 for keys."""
        if self._spec.qk_norm != "all":
            return norm(x)
        num_tokens, heads, dim = x.shape
        flat, group = x.as_strided((num_tokens, heads * dim), (x.stride(0), 1)), self._group
        if group.size == 1:
            return norm(flat).view(x.shape)
        shares = [head_shares(self._spec, rank)[which].times(dim) for rank in all_ranks(group.size)]
        normed = norm(group.all_gather(flat, [(share.begin, share.end) for share in shares]))
        return normed.view(num_tokens, -1, dim)[:, shares[group.rank].begin // dim : shares[group.rank].end // dim]
