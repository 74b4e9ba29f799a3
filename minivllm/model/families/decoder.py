"""The decoder that almost every family is, by the flags of its `ModelSpec`; the families add the names of their weights."""

from typing import cast

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import all_ranks, vocabulary_share
from minivllm.kernels import Ops
from minivllm.model.context import ForwardContext
from minivllm.model.interface import CausalLM
from minivllm.model.layers.attention import SelfAttention
from minivllm.model.layers.embedding import Embedding, PositionEmbedding
from minivllm.model.layers.latent_attention import LatentAttention
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.linear import Linear
from minivllm.model.layers.mlp import GatedMLP, PlainMLP
from minivllm.model.layers.moe import MixtureMLP
from minivllm.model.layers.norm import NoNorm, Norm, make_norm
from minivllm.model.layers.rotary import Rotary


class DecoderForCausalLM(CausalLM):
    weight_map = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}

    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str, max_model_len: int):
        self.spec = spec
        self.model = Decoder(spec, ops, dtype, device, max_model_len)
        self.lm_head = None
        if not spec.tie_word_embeddings and spec.has_last_layer:
            own = vocabulary_share(spec, ops.group)
            self.lm_head = Linear(ops, spec.hidden_size, (own,), bias=spec.head_bias, dtype=dtype)
        self._group = ops.group
        shares = [vocabulary_share(spec, rank) for rank in all_ranks(ops.group.size)]
        self._columns = [(share.begin, share.end) for share in shares]

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        return self.model(input_ids, positions, ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        logits = self.model.logits(hidden) if self.lm_head is None else self.lm_head(hidden)
        logits = self._group.all_gather(logits, self._columns)
        if self.spec.logits_scale != 1.0:
            logits *= self.spec.logits_scale
        cap = self.spec.logits_soft_cap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    def ignores(self, name: str) -> bool:
        # Old exports keep rotary tables and masks; some tied ones store the shared table a second time as the head.
        head, *_ = self.weight_map.get("lm_head", ("lm_head",))
        unused = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")
        return name.endswith(unused) or (name == f"{head}.weight" and self.lm_head is None)


class Decoder(Layer):
    """Or the pipeline stage of one that `spec.own_layers` are. It has the table of tokens if it embeds or is the tied head."""

    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str, max_model_len: int):
        rotary = Rotary(spec, ops, device, max_model_len)
        first, last, size, tied = spec.has_first_layer, spec.has_last_layer, spec.hidden_size, spec.tie_word_embeddings
        self.embed_tokens: Embedding | None = None
        if first or (last and tied):
            self.embed_tokens = Embedding(ops, vocabulary_share(spec, ops.group), size, tied=tied, dtype=dtype)
        self.embed_positions = PositionEmbedding(ops, spec, dtype) if spec.learned_positions and first else None
        self.embed_norm = make_norm(spec, ops, size, dtype) if spec.embed_norm and first else None
        self.layers: list[Layer] = [Layer() for _ in range(spec.num_layers)]  # elsewhere, but for
        self._own = spec.own_layers
        for index in self._own:
            self.layers[index] = DecoderLayer(spec, ops, dtype, index, rotary)
        self.norm = make_norm(spec, ops, size, dtype) if spec.final_norm and last else NoNorm(ops)
        self._ops = ops.elementwise
        self._embeds = first
        self._embed_scale = torch.tensor(spec.embed_scale, dtype=dtype).item()

    def __call__(self, inputs: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """inputs: token ids, or what the stage before returned, which is changed."""
        residual = self._embed(inputs, positions) if self._embeds else inputs  # [num_tokens, hidden_size]
        own = cast(list[DecoderLayer], self.layers[self._own.start : self._own.stop])
        x = own[0].first(residual, positions, ctx)
        for layer in own[1:]:
            x = layer(x, residual, positions, ctx)
        return self.norm.add(x, residual)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of the tied head."""
        assert self.embed_tokens is not None
        return self.embed_tokens.logits(hidden)

    def _embed(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        assert self.embed_tokens is not None
        residual = self.embed_tokens(input_ids)
        if self._embed_scale != 1.0:
            self._ops.scale(residual, self._embed_scale)
        if self.embed_positions is not None:
            self._ops.add(residual, self.embed_positions(positions))
        if self.embed_norm is not None:
            residual = self.embed_norm(residual)
        return residual


class DecoderLayer(Layer):
    """The residual stream is kept apart from what the last layer adds to it, so that adding and normalising are one op."""

    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, index: int, rotary: Rotary):
        def norm(used: bool) -> Norm:
            return make_norm(spec, ops, spec.hidden_size, dtype) if used else NoNorm(ops)

        self.input_layernorm = norm(spec.pre_norms)
        self.self_attn = make_attention(spec, ops, dtype, index, rotary)
        self.attn_post_norm = norm(spec.post_norms)
        self.post_attention_layernorm = norm(spec.pre_norms and spec.residual != "parallel")  # before the feed-forward layer
        self.mlp = make_mlp(spec, ops, dtype, index)
        self.mlp_post_norm = norm(spec.post_norms)
        self._body = self._sequential if spec.residual == "sequential" else self._parallel
        self._mlp_sees_residual = spec.residual == "parallel-two-norms"
        self._ops = ops.elementwise
        self._residual_scale = spec.residual_scale

    def first(self, residual: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """As the first layer: nothing waits to be added to the residual stream."""
        return self._body(self.input_layernorm(residual), residual, positions, ctx)

    def __call__(self, x: Tensor, residual: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """x: output of the layer before, not yet added to `residual`, which is changed in place; the same comes back."""
        return self._body(self.input_layernorm.add(x, residual), residual, positions, ctx)

    def _sequential(self, x: Tensor, residual: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        x = self._scaled(self.attn_post_norm(self.self_attn(x, positions, ctx)))
        x = self.post_attention_layernorm.add(x, residual)
        return self._scaled(self.mlp_post_norm(self.mlp(x)))

    def _parallel(self, x: Tensor, residual: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        attended = self.self_attn(x, positions, ctx)
        return self._ops.add(attended, self.mlp(self.post_attention_layernorm(residual) if self._mlp_sees_residual else x))

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self._residual_scale == 1.0 else self._ops.scale(x, self._residual_scale)


def make_attention(
    spec: ModelSpec, ops: Ops, dtype: torch.dtype, index: int, rotary: Rotary
) -> SelfAttention | LatentAttention:
    if spec.latent is not None:
        return LatentAttention(spec, spec.latent, ops, dtype, index, rotary)
    return SelfAttention(spec, ops, dtype, index, rotary)


def make_mlp(spec: ModelSpec, ops: Ops, dtype: torch.dtype, index: int) -> GatedMLP | PlainMLP | MixtureMLP:
    if spec.moe is not None and spec.layers[index].is_moe:
        return MixtureMLP(spec, spec.moe, ops, dtype)
    return GatedMLP(spec, ops, dtype) if spec.gated_mlp else PlainMLP(spec, ops, dtype)
