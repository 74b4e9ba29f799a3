"""Weights of the families of 2019 to 2023."""

from typing import Any

from minivllm.config.model_spec import ModelSpec
from minivllm.model.families.decoder import DecoderForCausalLM
from minivllm.model.layers.shard import TRANSPOSED, grouped_heads

_QKV = DecoderForCausalLM.weight_map["qkv_proj"]


class GPT2LMHeadModel(DecoderForCausalLM):
    """Its weights are transposed."""

    weight_map = {
        "model": ("transformer",),
        "embed_tokens": ("wte",),
        "embed_positions": ("wpe",),
        "layers": ("h",),
        "input_layernorm": ("ln_1",),
        "self_attn": ("attn",),
        "qkv_proj": ("c_attn",),
        "o_proj": ("c_proj",),
        "post_attention_layernorm": ("ln_2",),
        "up_proj": ("c_fc",),
        "down_proj": ("c_proj",),
        "norm": ("ln_f",),
    }
    layouts = {"qkv_proj": TRANSPOSED, "o_proj": TRANSPOSED, "up_proj": TRANSPOSED, "down_proj": TRANSPOSED}


class GPTJForCausalLM(DecoderForCausalLM):
    weight_map = {
        "model": ("transformer",),
        "embed_tokens": ("wte",),
        "layers": ("h",),
        "input_layernorm": ("ln_1",),
        "self_attn": ("attn",),
        "qkv_proj": _QKV,
        "o_proj": ("out_proj",),
        "up_proj": ("fc_in",),
        "down_proj": ("fc_out",),
        "norm": ("ln_f",),
    }


class PhiForCausalLM(DecoderForCausalLM):
    weight_map = {
        "qkv_proj": _QKV,
        "q_norm": ("q_layernorm",),
        "k_norm": ("k_layernorm",),
        "o_proj": ("dense",),
        "up_proj": ("fc1",),
        "down_proj": ("fc2",),
        "norm": ("final_layernorm",),
    }


class OPTForCausalLM(DecoderForCausalLM):
    weight_map = {
        "model": ("model.decoder",),
        "input_layernorm": ("self_attn_layer_norm",),
        "qkv_proj": _QKV,
        "o_proj": ("out_proj",),
        "post_attention_layernorm": ("final_layer_norm",),
        "mlp": ("",),
        "up_proj": ("fc1",),
        "down_proj": ("fc2",),
        "norm": ("final_layer_norm",),
    }


class MptForCausalLM(DecoderForCausalLM):
    weight_map = {
        "model": ("transformer",),
        "embed_tokens": ("wte",),
        "layers": ("blocks",),
        "input_layernorm": ("norm_1",),
        "self_attn": ("attn",),
        "qkv_proj": ("Wqkv",),
        "o_proj": ("out_proj",),
        "post_attention_layernorm": ("norm_2",),
        "mlp": ("ffn",),
        "norm": ("norm_f",),
    }


class _HeadByHead(DecoderForCausalLM):
    """The rows of q, k and v stand KV head by KV head."""

    def __init__(self, spec: ModelSpec, *build: Any):
        super().__init__(spec, *build)
        queries = spec.num_heads // spec.num_kv_heads
        self.layouts = {"qkv_proj": grouped_heads(spec.num_kv_heads, queries, spec.head_dim)}


class GPTNeoXForCausalLM(_HeadByHead):
    weight_map = {
        "model": ("gpt_neox",),
        "embed_tokens": ("embed_in",),
        "self_attn": ("attention",),
        "qkv_proj": ("query_key_value",),
        "o_proj": ("dense",),
        "up_proj": ("dense_h_to_4h",),
        "down_proj": ("dense_4h_to_h",),
        "norm": ("final_layer_norm",),
        "lm_head": ("embed_out",),
    }


class BloomForCausalLM(_HeadByHead):
    weight_map = {
        "model": ("transformer",),
        "embed_tokens": ("word_embeddings",),
        "embed_norm": ("word_embeddings_layernorm",),
        "layers": ("h",),
        "self_attn": ("self_attention",),
        "qkv_proj": ("query_key_value",),
        "o_proj": ("dense",),
        "up_proj": ("dense_h_to_4h",),
        "down_proj": ("dense_4h_to_h",),
        "norm": ("ln_f",),
    }


class FalconForCausalLM(BloomForCausalLM):
    def __init__(self, spec: ModelSpec, *build: Any):
        super().__init__(spec, *build)
        if spec.residual == "parallel-two-norms":
            self.weight_map = {**self.weight_map, "input_layernorm": ("ln_attn",), "post_attention_layernorm": ("ln_mlp",)}
