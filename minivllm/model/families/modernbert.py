"""ModernBERT (Warner et al. 2024): rotary positions, gated feed-forward, most layers local, norms before the layers."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import head_shares, intermediate_share, vocabulary_share
from minivllm.kernels import Ops
from minivllm.model.attention.backend import AttentionForm
from minivllm.model.context import ForwardContext
from minivllm.model.interface import Model
from minivllm.model.layers.activation import activation, gated_activation
from minivllm.model.layers.embedding import Embedding
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.linear import Linear
from minivllm.model.layers.norm import NoNorm, Norm, make_norm
from minivllm.model.layers.rotary import Rotary


class ModernBertEncoder(Model):
    head: "PredictionHead"
    classifier: Linear

    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str, max_model_len: int):
        self.spec = spec
        self.model = ModernBert(spec, ops, dtype, device, max_model_len)

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        return self.model(input_ids, positions, ctx)

    def set_pooling_head(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, num_labels: int) -> None:
        if num_labels:
            self.head = PredictionHead(spec, ops, dtype)
            self.classifier = Linear(ops, spec.hidden_size, (num_labels,), bias=True, dtype=dtype)

    def classify(self, pooled: Tensor) -> Tensor:
        return self.classifier(self.head(pooled))


class ModernBert(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str, max_model_len: int):
        rotary = Rotary(spec, ops, device, max_model_len)
        self.embeddings = Embeddings(spec, ops, dtype)
        self.layers = [ModernBertLayer(spec, ops, dtype, index, rotary) for index in range(spec.num_layers)]
        self.final_norm = make_norm(spec, ops, spec.hidden_size, dtype)

    def __call__(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        x = self.embeddings(input_ids)  # [num_tokens, hidden_size]
        for layer in self.layers:
            x = layer(x, positions, ctx)
        return self.final_norm(x)


class Embeddings(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype):
        vocab = vocabulary_share(spec, ops.group)
        self.tok_embeddings = Embedding(ops, vocab, spec.hidden_size, tied=False, dtype=dtype)
        self.norm = make_norm(spec, ops, spec.hidden_size, dtype)

    def __call__(self, input_ids: Tensor) -> Tensor:
        return self.norm(self.tok_embeddings(input_ids))


class ModernBertLayer(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, index: int, rotary: Rotary):
        # The embeddings end with a norm, so the first layer has none.
        self.attn_norm: Norm = make_norm(spec, ops, spec.hidden_size, dtype) if index else NoNorm(ops)
        self.attn = ModernBertAttention(spec, ops, dtype, index, rotary)
        self.mlp_norm = make_norm(spec, ops, spec.hidden_size, dtype)
        self.mlp = ModernBertMLP(spec, ops, dtype)
        self._add = ops.elementwise.add

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """`x` is changed."""
        x = self._add(x, self.attn(self.attn_norm(x), positions, ctx))
        return self._add(x, self.mlp(self.mlp_norm(x)))


class ModernBertAttention(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, index: int, rotary: Rotary):
        layer, (heads, _) = spec.layers[index], head_shares(spec, ops.group)
        own = heads.times(spec.head_dim)
        self.Wqkv = Linear(ops, spec.hidden_size, (own, own, own), bias=spec.qkv_bias, dtype=dtype)
        self.Wo = Linear(ops, own, (spec.hidden_size,), bias=spec.o_bias, dtype=dtype)
        self._packed_shape = (-1, 3 * heads.size, spec.head_dim)
        self._num_heads = heads.size
        self._turn = rotary.of(layer.rope)
        self._form = AttentionForm(spec.head_dim**-0.5, window=layer.window)
        self._index = index

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        q, k, v = self.Wqkv(x).view(self._packed_shape).split(self._num_heads, dim=1)  # [num_tokens, num_heads, head_dim]
        if self._turn is not None:
            self._turn(q, k, positions)
        out = ctx.backend.forward(q, k, v, ctx.kv_caches[self._index], ctx.metadata, self._form)
        return self.Wo(out.flatten(1))


class ModernBertMLP(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype):
        own = intermediate_share(spec.intermediate_size, ops.group)
        self.Wi = Linear(ops, spec.hidden_size, (own, own), bias=spec.mlp_bias, dtype=dtype)
        self.Wo = Linear(ops, own, (spec.hidden_size,), bias=spec.mlp_bias, dtype=dtype)
        self._activation = gated_activation(spec.hidden_act, ops)

    def __call__(self, x: Tensor) -> Tensor:
        return self.Wo(self._activation(self.Wi(x)))


class PredictionHead(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype):
        encoder = spec.encoder
        assert encoder is not None
        self.dense = Linear(ops, spec.hidden_size, (spec.hidden_size,), bias=encoder.classifier_bias, dtype=dtype)
        self.norm = make_norm(spec, ops, spec.hidden_size, dtype)
        self._activation = activation(encoder.classifier_act, ops)

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self._activation(self.dense(x)))
