"""The decoder that almost every family is, by the flags of its `ModelSpec`; the families add the names of their weights."""

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
        if not spec.tie_word_embeddings:
            own = vocabulary_share(spec, ops.group)
            self.lm_head = Linear(ops, spec.hidden_size, (own,), bias=spec.head_bias, dtype=dtype)
        self._group = ops.group
        shares = [vocabulary_share(spec, rank) for rank in all_ranks(ops.group.size)]
        self._columns = [(share.begin, share.end) for share in shares]

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        return self.model(input_ids, positions, ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        logits = self.model.embed_tokens.logits(hidden) if self.lm_head is None else self.lm_head(hidden)
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
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str, max_model_len: int):
        rotary = Rotary(spec, ops, device, max_model_len)
        vocab = vocabulary_share(spec, ops.group)
        self.embed_tokens = Embedding(ops, vocab, spec.hidden_size, tied=spec.tie_word_embeddings, dtype=dtype)
        self.embed_positions = PositionEmbedding(ops, spec, dtype) if spec.learned_positions else None
        self.embed_norm = make_norm(spec, ops, spec.hidden_size, dtype) if spec.embed_norm else None
        self.layers = [DecoderLayer(spec, ops, dtype, index, rotary) for index in range(spec.num_layers)]
        self.norm = make_norm(spec, ops, spec.hidden_size, dtype) if spec.final_norm else NoNorm(ops)
        self._ops = ops.elementwise
        self._embed_scale = torch.tensor(spec.embed_scale, dtype=dtype).item()

    def __call__(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        residual = self.embed_tokens(input_ids)  # [num_tokens, hidden_size]
        if self._embed_scale != 1.0:
            self._ops.scale(residual, self._embed_scale)
        if self.embed_positions is not None:
            self._ops.add(residual, self.embed_positions(positions))
        if self.embed_norm is not None:
            residual = self.embed_norm(residual)
        x = self.layers[0].first(residual, positions, ctx)
        for layer in self.layers[1:]:
            x = layer(x, residual, positions, ctx)
        return self.norm.add(x, residual)


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
