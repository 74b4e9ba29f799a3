"""Llama's descendants: what their weights are called where it is not what Llama's are."""

from typing import Any

from minivllm.config.model_spec import ModelSpec
from minivllm.model.families.decoder import DecoderForCausalLM
from minivllm.model.layers.shard import Layout

_MERGED = DecoderForCausalLM.weight_map


class LlamaForCausalLM(DecoderForCausalLM):
    """Also of Mistral, Qwen, SmolLM3, Granite, OLMo 1, Nemotron, Seed-OSS and ERNIE 4.5."""


class Gemma2ForCausalLM(DecoderForCausalLM):
    """Also of Gemma 3."""

    weight_map = {
        **_MERGED,
        "attn_post_norm": ("post_attention_layernorm",),
        "post_attention_layernorm": ("pre_feedforward_layernorm",),
        "mlp_post_norm": ("post_feedforward_layernorm",),
    }


class Olmo2ForCausalLM(DecoderForCausalLM):
    """Also of OLMo 3 and EXAONE 4."""

    weight_map = {**_MERGED, "attn_post_norm": ("post_attention_layernorm",), "mlp_post_norm": ("post_feedforward_layernorm",)}


class Phi3ForCausalLM(DecoderForCausalLM):
    """Projections are merged in the checkpoint already."""

    weight_map = {}


class GlmForCausalLM(DecoderForCausalLM):
    """Also of GLM-4; gate and up are merged in the checkpoint already."""

    weight_map = {
        "qkv_proj": _MERGED["qkv_proj"],
        "attn_post_norm": ("post_self_attn_layernorm",),
        "mlp_post_norm": ("post_mlp_layernorm",),
    }


class CohereForCausalLM(DecoderForCausalLM):
    """Also of Cohere 2; norms of queries and keys have a row for each head."""

    def __init__(self, spec: ModelSpec, *build: Any):
        super().__init__(spec, *build)
        by_head = Layout(lambda shape: (shape[0] // spec.head_dim, spec.head_dim), lambda tensor: tensor.flatten())
        self.layouts = {"q_norm": by_head, "k_norm": by_head}


class StableLmForCausalLM(DecoderForCausalLM):
    weight_map = {**_MERGED, "q_norm": ("q_layernorm.norms.{}",), "k_norm": ("k_layernorm.norms.{}",)}


class Starcoder2ForCausalLM(DecoderForCausalLM):
    weight_map = {**_MERGED, "up_proj": ("c_fc",), "down_proj": ("c_proj",)}
