"""Llama and what `ModelSpec` flags make of it: Llama 2 and 3, SmolLM2, Mistral, Qwen2."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.context import ForwardContext
from minivllm.model.interface import CausalLM
from minivllm.model.layers.attention import SelfAttention
from minivllm.model.layers.embedding import Embedding
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.linear import Linear
from minivllm.model.layers.mlp import GatedMLP
from minivllm.model.layers.norm import RMSNorm
from minivllm.model.layers.rotary import cos_sin_table


class LlamaForCausalLM(CausalLM):
    weight_map = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}

    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str, max_model_len: int):
        self.model = LlamaModel(spec, ops, dtype, device, max_model_len)
        self.lm_head: Linear | None = None
        if not spec.tie_word_embeddings:
            self.lm_head = Linear(ops, spec.hidden_size, (spec.vocab_size,), bias=False, dtype=dtype)

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        return self.model(input_ids, positions, ctx)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.model.embed_tokens.logits(hidden) if self.lm_head is None else self.lm_head(hidden)

    def ignores(self, name: str) -> bool:
        # Old exports keep rotary tables; some tied ones store the shared table a second time as the head.
        return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and self.lm_head is None)


class LlamaModel(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str, max_model_len: int):
        cos_sin = cos_sin_table(spec.rope, spec.head_dim, max_model_len).to(device)
        self.embed_tokens = Embedding(ops, spec.vocab_size, spec.hidden_size, tied=spec.tie_word_embeddings, dtype=dtype)
        self.layers = [LlamaLayer(spec, ops, dtype, index, cos_sin) for index in range(spec.num_layers)]
        self.norm = RMSNorm(ops, spec.hidden_size, spec.rms_norm_eps, dtype=dtype)

    def __call__(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        residual = self.embed_tokens(input_ids)  # [num_tokens, hidden_size]
        x = self.layers[0].first(residual, positions, ctx)
        for layer in self.layers[1:]:
            x = layer(x, residual, positions, ctx)
        return self.norm.add(x, residual)


class LlamaLayer(Layer):
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, index: int, cos_sin: Tensor):
        self.input_layernorm = RMSNorm(ops, spec.hidden_size, spec.rms_norm_eps, dtype=dtype)
        self.self_attn = SelfAttention(spec, ops, dtype, index, cos_sin)
        self.post_attention_layernorm = RMSNorm(ops, spec.hidden_size, spec.rms_norm_eps, dtype=dtype)
        self.mlp = GatedMLP(spec, ops, dtype)

    def first(self, residual: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """As the first layer: nothing waits to be added to the residual stream."""
        return self._body(self.input_layernorm(residual), residual, positions, ctx)

    def __call__(self, x: Tensor, residual: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """x: output of the layer before, not yet added to `residual`, which is changed in place; the same comes back."""
        return self._body(self.input_layernorm.add(x, residual), residual, positions, ctx)

    def _body(self, x: Tensor, residual: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        x = self.self_attn(x, positions, ctx)
        return self.mlp(self.post_attention_layernorm.add(x, residual))
