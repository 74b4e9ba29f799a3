"""Flags of the families around Llama: one small function each, of what their config.json says and leaves unsaid."""

from typing import Any

from minivllm.config.hf.layers import layers_of, pattern_of, uniform_layers
from minivllm.config.hf.reader import Reader

Flags = dict[str, Any]


def llama(read: Reader) -> Flags:
    bias = read.flag("attention_bias")
    return {"qkv_bias": bias, "o_bias": bias}


def mistral(read: Reader) -> Flags:
    return {"layers": layers_of(read, read.get("sliding_window"))}


def qwen2(read: Reader) -> Flags:
    # Always has biases on q, k and v, and says so nowhere.
    return {"qkv_bias": True, "layers": layers_of(read, _qwen_window(read), _from_layer(read))}


def qwen3(read: Reader) -> Flags:
    return {**llama(read), "qk_norm": "head", "layers": layers_of(read, _qwen_window(read), _from_layer(read))}


def gemma(read: Reader) -> Flags:
    return {**llama(read), "norm_plus_one": True, "embed_scale": read.count("hidden_size") ** 0.5}


def gemma2(read: Reader) -> Flags:
    return {
        **gemma(read),
        "post_norms": True,
        "attention_scale": read.number("query_pre_attn_scalar", 256) ** -0.5,
        "attention_soft_cap": read.number("attn_logit_softcapping", 0.0),
        "logits_soft_cap": read.number("final_logit_softcapping", 0.0),
        "layers": layers_of(read, read.get("sliding_window"), pattern_of(read, 2)),
    }


def gemma3(read: Reader) -> Flags:
    if read.get("rope_local_base_freq"):  # as transformers 4 writes it: the scaling is of the full layers alone
        full = {"rope_theta": read.number("rope_theta", 1e6), "rope_type": "default", **read.get("rope_scaling", {})}
        local = {"rope_theta": read.number("rope_local_base_freq", 10000.0), "rope_type": "default"}
        ropes = {"full_attention": full, "sliding_attention": local}
        read = read.replaced(rope_parameters=ropes, rope_scaling=None)
    return {**gemma2(read), "qk_norm": "head", "layers": layers_of(read, read.get("sliding_window"), pattern_of(read, 6))}


def phi3(read: Reader) -> Flags:
    return {"layers": uniform_layers(read, read.get("sliding_window"))}


def smollm3(read: Reader) -> Flags:
    interval, count = read.count("no_rope_layer_interval", 4), read.count("num_hidden_layers")
    ropes = read.get("no_rope_layers") or [(index + 1) % interval for index in range(count)]
    window = read.get("sliding_window") if read.flag("use_sliding_window") else None
    return {**llama(read), "layers": layers_of(read, window, turned=[bool(rope) for rope in ropes])}


def granite(read: Reader) -> Flags:
    return {
        **llama(read),
        "embed_scale": read.number("embedding_multiplier", 1.0),
        "residual_scale": read.number("residual_multiplier", 1.0),
        "attention_scale": read.number("attention_multiplier", 1.0),
        "logits_scale": 1 / read.number("logits_scaling", 1.0),
    }


def cohere(read: Reader) -> Flags:
    return {
        **llama(read),
        "norm": "layer",
        "residual": "parallel",
        "qk_norm": "heads" if read.flag("use_qk_norm") else None,
        "rotary_interleaved": True,
        "logits_scale": read.number("logit_scale", 0.0625),
    }


def cohere2(read: Reader) -> Flags:
    layers = layers_of(read, read.get("sliding_window"), pattern_of(read, 4))
    turned = [layer.window > 0 for layer in layers]
    return {**cohere(read), "qk_norm": None, "layers": layers_of(read, read.get("sliding_window"), pattern_of(read, 4), turned)}


def olmo(read: Reader) -> Flags:
    return {**llama(read), "norm": "layer", "norm_eps": 1e-5, "norm_weight": False, "clip_qkv": read.number("clip_qkv", 0.0)}


def olmo2(read: Reader) -> Flags:
    return {**llama(read), "pre_norms": False, "post_norms": True, "qk_norm": "all"}


def olmo3(read: Reader) -> Flags:
    if read.get("rope_scaling"):  # as transformers 4 writes it: of the full layers alone
        plain = {"rope_theta": read.number("rope_theta", 5e5), "rope_type": "default"}
        ropes = {"full_attention": {**plain, **read.get("rope_scaling")}, "sliding_attention": plain}
        read = read.replaced(rope_parameters=ropes, rope_scaling=None)
    return {**olmo2(read), "layers": layers_of(read, read.get("sliding_window"), pattern_of(read, 4))}


def exaone4(read: Reader) -> Flags:
    window = read.get("sliding_window")
    pattern = pattern_of(read, 4)
    turned = [layer.window > 0 or not window for layer in layers_of(read, window, pattern)]
    return {"pre_norms": False, "post_norms": True, "qk_norm": "head", "layers": layers_of(read, window, pattern, turned)}


def stablelm(read: Reader) -> Flags:
    return {
        "norm": "layer",
        "norm_bias": True,
        "residual": "parallel" if read.flag("use_parallel_residual") else "sequential",
        "qkv_bias": read.flag("use_qkv_bias"),
        "qk_norm": "heads" if read.flag("qk_layernorm") else None,
    }


def starcoder2(read: Reader) -> Flags:
    bias = read.flag("use_bias", True)
    return {
        "norm": "layer",
        "norm_bias": True,
        "gated_mlp": False,
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": bias,
        "layers": uniform_layers(read, read.get("sliding_window")),
    }


def glm(read: Reader) -> Flags:
    return {"qkv_bias": read.flag("attention_bias", True), "rotary_interleaved": True}


def glm4(read: Reader) -> Flags:
    return {**glm(read), "post_norms": True}


def nemotron(read: Reader) -> Flags:
    return {**llama(read), "norm": "layer", "norm_bias": True, "norm_plus_one": True, "gated_mlp": False}


def seed_oss(read: Reader) -> Flags:
    return {"qkv_bias": read.flag("attention_bias", True), "o_bias": read.flag("attention_out_bias")}


def ernie(read: Reader) -> Flags:
    bias = read.flag("use_bias")
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": bias, "rotary_interleaved": True}


def _qwen_window(read: Reader) -> int | None:
    return read.get("sliding_window") if read.flag("use_sliding_window") or read.get("layer_types") else None


def _from_layer(read: Reader) -> list[bool]:
    """Which layers of a Qwen model with a window have it."""
    first, count = read.get("max_window_layers", 0), read.count("num_hidden_layers")
    return [index >= first for index in range(count)]
