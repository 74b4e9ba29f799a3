"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019), with XLM-R and CamemBERT, which are the same network."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import Share, head_shares, intermediate_share, vocabulary_share
from minivllm.kernels import Ops
from minivllm.model.attention.backend import AttentionForm
from minivllm.model.context import ForwardContext
from minivllm.model.interface import Model
from minivllm.model.layers.activation import activation
from minivllm.model.layers.embedding import Embedding, PositionEmbedding
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.linear import Linear
from minivllm.model.layers.norm import make_norm

_MERGED: dict[str, tuple[str, ...]] = {"qkv": ("query", "key", "value")}


class BertEncoder(Model):
    """Its classifier takes the first token through the `pooler` layer."""

    base = "bert"
    weight_map = _MERGED
    classifier: Linear

    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str, max_model_len: int):
        self.spec = spec
        self.bert = Bert(spec, ops, dtype)

    def loaded(self) -> None:
        self.bert.embeddings.share_first_type()

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        return self.bert(input_ids, positions, ctx)

    def set_pooling_head(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, num_labels: int) -> None:
        if num_labels:
            self.bert.pooler = Dense(ops, spec.hidden_size, spec.hidden_size, dtype)
            self.classifier = Linear(ops, spec.hidden_size, (num_labels,), bias=True, dtype=dtype)

    def classify(self, pooled: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.bert.pooler.dense(pooled)))


class RobertaEncoder(BertEncoder):
    """Its classifier has both layers in itself."""

    weight_map = {**_MERGED, "bert": ("roberta",)}
    classifier: "RobertaClassifier"  # type: ignore[assignment]

    def set_pooling_head(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, num_labels: int) -> None:
        if num_labels:
            self.classifier = RobertaClassifier(spec, ops, dtype, num_labels)

    def classify(self, pooled: Tensor) -> Tensor:
        return self.classifier.out_proj(torch.tanh(self.classifier.dense(pooled)))


class Bert(Layer):
    pooler: "Dense"  # only under a classifier

    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype):
        self.embeddings = BertEmbeddings(spec, ops, dtype)
        self.encoder = BertLayers(spec, ops, dtype)

    def __call__(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        x = self.embeddings(input_ids, positions, ctx.token_types)  # [num_tokens, hidden_size]
        for layer in self.encoder.layer:
            x = layer(x, ctx)
        return x


class BertEmbeddings(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype):
        assert spec.encoder is not None
        num_types = spec.encoder.type_vocab_size
        vocab = vocabulary_share(spec, ops.group)
        self.word_embeddings = Embedding(ops, vocab, spec.hidden_size, tied=False, dtype=dtype)
        self.position_embeddings = PositionEmbedding(ops, spec, dtype)
        self.token_type_embeddings = Embedding(ops, num_types, spec.hidden_size, tied=False, dtype=dtype)
        self.LayerNorm = make_norm(spec, ops, spec.hidden_size, dtype)
        self._has_types = num_types > 1

    def __call__(self, input_ids: Tensor, positions: Tensor, token_types: Tensor | None) -> Tensor:
        x = self.word_embeddings(input_ids)
        if token_types is not None and self._has_types:
            x += self.token_type_embeddings(token_types)
        return self.LayerNorm.add(self.position_embeddings(positions), x)

    def share_first_type(self) -> None:
        """Tokens have the vector of the first text wherever they stand: those of the second have what theirs is more."""
        types, positions = self.token_type_embeddings, self.position_embeddings
        first = types.weight[0]
        positions.weight = positions.weight + first
        types.weight = types.weight - first


class BertLayers(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype):
        self.layer = [BertLayer(spec, ops, dtype, index) for index in range(spec.num_layers)]


class BertLayer(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, index: int):
        self.attention = BertAttention(spec, ops, dtype, index)
        own = intermediate_share(spec.intermediate_size, ops.group)
        self.intermediate = Dense(ops, spec.hidden_size, own, dtype)
        self.output = DenseAddNorm(spec, ops, own, dtype)
        self._activation = activation(spec.hidden_act, ops)

    def __call__(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        x = self.attention(x, ctx)
        return self.output(self._activation(self.intermediate.dense(x)), x)


class BertAttention(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, index: int):
        self.self = BertSelfAttention(spec, ops, dtype, index)
        heads, _ = head_shares(spec, ops.group)
        self.output = DenseAddNorm(spec, ops, heads.times(spec.head_dim), dtype)

    def __call__(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        return self.output(self.self(x, ctx), x)


class BertSelfAttention(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, index: int):
        heads, _ = head_shares(spec, ops.group)
        self.qkv = Linear(ops, spec.hidden_size, (heads.times(spec.head_dim),) * 3, bias=True, dtype=dtype)
        self._packed_shape = (-1, 3, heads.size, spec.head_dim)
        self._form = AttentionForm(spec.head_dim**-0.5)
        self._index = index

    def __call__(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        q, k, v = self.qkv(x).view(self._packed_shape).unbind(1)  # [num_tokens, num_heads, head_dim] each
        return ctx.backend.forward(q, k, v, ctx.kv_caches[self._index], ctx.metadata, self._form).flatten(1)


class DenseAddNorm(Layer):
    """A linear layer, the residual connection around all before it, and the norm behind."""

    def __init__(self, spec: ModelSpec, ops: Ops, in_features: Share, dtype: torch.dtype):
        self.dense = Linear(ops, in_features, (spec.hidden_size,), bias=True, dtype=dtype)
        self.LayerNorm = make_norm(spec, ops, spec.hidden_size, dtype)

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        """`residual` is changed."""
        return self.LayerNorm.add(self.dense(x), residual)


class Dense(Layer):
    """The checkpoints' name for a linear layer."""

    def __init__(self, ops: Ops, in_features: int, out_features: int | Share, dtype: torch.dtype):
        self.dense = Linear(ops, in_features, (out_features,), bias=True, dtype=dtype)


class RobertaClassifier(Dense):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, num_labels: int):
        super().__init__(ops, spec.hidden_size, spec.hidden_size, dtype)
        self.out_proj = Linear(ops, spec.hidden_size, (num_labels,), bias=True, dtype=dtype)
