"""Multi-head latent attention (DeepSeek-AI 2024), in the form that never makes the keys and values of past tokens.

With c the short vector of a token, head h has the value W_v[h] c and, but for the turned part, the key W_k[h] c. Since
q · W_k[h] c is (W_k[h]' q) · c, queries are carried over to where c is, all heads attend to the same vectors, and W_v is
applied at the end.
"""

import torch
from torch import Tensor

from minivllm.config.hf.parts import LatentSpec
from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import Share, head_shares
from minivllm.kernels import Ops
from minivllm.model.attention.backend import AttentionForm
from minivllm.model.context import ForwardContext
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.linear import Linear
from minivllm.model.layers.norm import RMSNorm
from minivllm.model.layers.rotary import Rotary

_EPS = 1e-6


class LatentAttention(Layer):
    def __init__(self, spec: ModelSpec, latent: LatentSpec, ops: Ops, dtype: torch.dtype, index: int, rotary: Rotary):
        def linear(size: int | Share, out: int | Share, bias: bool = False) -> Linear:
            return Linear(ops, size, (out,), bias=bias, dtype=dtype)

        heads, _ = head_shares(spec, ops.group)
        q_size = heads.times(spec.head_dim)
        if latent.q_rank:
            self.q_a_proj = linear(spec.hidden_size, latent.q_rank, spec.qkv_bias)
            self.q_a_layernorm = RMSNorm(ops, latent.q_rank, _EPS, dtype=dtype)
            self.q_b_proj = linear(latent.q_rank, q_size)
        else:
            self.q_proj = linear(spec.hidden_size, q_size)
        self.kv_a_proj_with_mqa = linear(spec.hidden_size, latent.kv_rank + latent.rope_dim, spec.qkv_bias)
        self.kv_a_layernorm = RMSNorm(ops, latent.kv_rank, _EPS, dtype=dtype)
        self.kv_b_proj = Projections(heads, latent, dtype)
        self.o_proj = linear(heads.times(latent.v_dim), spec.hidden_size, spec.o_bias)
        self._latent = latent
        self._head_shape = (-1, heads.size, spec.head_dim)
        self._index = index
        self._form = AttentionForm(scale=spec.attention_scale or spec.head_dim**-0.5)
        self._turn = rotary.of(spec.layers[index].rope)

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        latent = self._latent
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if latent.q_rank else self.q_proj(x)
        q, q_turned = q.view(self._head_shape).split_with_sizes((latent.nope_dim, latent.rope_dim), dim=-1)
        compressed, k_turned = self.kv_a_proj_with_mqa(x).split_with_sizes((latent.kv_rank, latent.rope_dim), dim=-1)
        k_turned = k_turned[:, None]  # [num_tokens, 1, rope_dim]
        if self._turn is not None:
            self._turn(q_turned, k_turned, positions)
        c = self.kv_a_layernorm(compressed.contiguous())[:, None]  # [num_tokens, 1, kv_rank]
        q = torch.cat((self.kv_b_proj.carry_over(q), q_turned), dim=-1)
        k = torch.cat((c, k_turned), dim=-1)  # what is cached
        out = ctx.backend.forward(q, k, k, ctx.kv_caches[self._index], ctx.metadata, self._form)
        return self.o_proj(self.kv_b_proj.values(out).flatten(1))


class Projections(Layer):
    """W_k and W_v of these heads."""

    def __init__(self, heads: Share, latent: LatentSpec, dtype: torch.dtype):
        self.weight = self.declare(heads.times(latent.nope_dim + latent.v_dim), latent.kv_rank, dtype=dtype)
        self._heads = heads.size
        self._sizes = (latent.nope_dim, latent.v_dim)

    def finish_loading(self) -> None:
        by_head = self.weight.view(self._heads, sum(self._sizes), -1)
        self._keys, self._values = by_head.split_with_sizes(self._sizes, dim=1)  # [heads, dim, kv_rank]

    def carry_over(self, q: Tensor) -> Tensor:
        """[num_tokens, heads, nope_dim] -> [num_tokens, heads, kv_rank]"""
        return torch.einsum("thd,hdr->thr", q, self._keys)

    def values(self, mixed: Tensor) -> Tensor:
        """[num_tokens, heads, kv_rank] -> [num_tokens, heads, v_dim]"""
        return torch.einsum("thr,hdr->thd", mixed, self._values)
