"""Flags of the families of 2019 to 2023: GPT and its kin, with LayerNorm, biases and feed-forward layers without gates."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from minivllm.config.hf.layers import layers_of
from minivllm.config.hf.reader import Reader

Flags = dict[str, Any]


def gpt2(read: Reader) -> Flags:
    return {
        **_plain(read, bias=True),
        "learned_positions": read.count("max_position_embeddings"),
        "attention_scale": 0.0 if read.flag("scale_attn_weights", True) else 1.0,
        "scale_by_layer": read.flag("scale_attn_by_inverse_layer_idx"),
        "layers": _without_rope(read),
    }


def gptj(read: Reader) -> Flags:
    return {
        **_plain(read, bias=True),
        "qkv_bias": False,
        "o_bias": False,
        "head_bias": True,
        "residual": "parallel",
        "rotary_interleaved": True,
    }


def gpt_neox(read: Reader) -> Flags:
    return {
        **_plain(read, bias=read.flag("attention_bias", True)),
        "mlp_bias": True,
        "intermediate_size": read.count("intermediate_size"),
        "residual": "parallel-two-norms" if read.flag("use_parallel_residual", True) else "sequential",
    }


def phi(read: Reader) -> Flags:
    return {
        **_plain(read, bias=True),
        "intermediate_size": read.count("intermediate_size"),
        "num_kv_heads": read.count("num_key_value_heads", read.count("num_attention_heads")),
        "head_bias": True,
        "residual": "parallel",
        "qk_norm": "head" if read.flag("qk_layernorm") else None,
    }


def opt(read: Reader) -> Flags:
    if not read.flag("do_layer_norm_before", True) or read.get("word_embed_proj_dim") != read.count("hidden_size"):
        read.refuse("an OPT that normalises after its layers, or projects its embedding, is not supported")
    return {
        **_plain(read, bias=read.flag("enable_bias", True)),
        "norm_eps": 1e-5,
        "intermediate_size": read.count("ffn_dim"),
        "norm_weight": read.flag("layer_norm_elementwise_affine", True),
        "final_norm": not read.flag("_remove_final_layer_norm"),
        "learned_positions": read.count("max_position_embeddings") + 2,
        "position_offset": 2,
        "layers": _without_rope(read),
    }


def falcon(read: Reader) -> Flags:
    num_heads, new = read.count("num_attention_heads"), read.flag("new_decoder_architecture")
    parallel = new or read.flag("parallel_attn", True)
    two_norms = new and read.get("num_ln_in_parallel_attn", 2) == 2
    flags = {
        **_plain(read, bias=read.flag("bias")),
        "intermediate_size": read.get("ffn_hidden_size") or 4 * read.count("hidden_size"),
        "residual": ("parallel-two-norms" if two_norms else "parallel") if parallel else "sequential",
        "num_kv_heads": read.count("num_kv_heads", num_heads) if new or not read.flag("multi_query", True) else 1,
    }
    if read.flag("alibi"):
        # Scores are scaled after the bias is added, which has bfloat16 slopes.
        scale = (read.count("hidden_size") // num_heads) ** -0.5
        flags |= {"layers": _without_rope(read), "alibi_slopes": tuple(_bf16(s) * scale for s in _bloom_slopes(num_heads))}
    return flags


def bloom(read: Reader) -> Flags:
    if read.flag("apply_residual_connection_post_layernorm"):
        read.refuse("a BLOOM with apply_residual_connection_post_layernorm is not supported")
    return {
        **_plain(read, bias=True),
        "hidden_act": "gelu_pytorch_tanh",
        "embed_norm": True,
        "alibi_slopes": _bloom_slopes(read.count("num_attention_heads")),
        "layers": _without_rope(read),
    }


def mpt(read: Reader) -> Flags:
    attention = read.get("attn_config", {})
    for name, usual in (("alibi", True), ("qk_ln", False), ("prefix_lm", False)):
        if bool(attention.get(name, usual)) != usual:
            read.refuse(f"an MPT with attn_config.{name}={attention[name]} is not supported")
    return {
        **_plain(read, bias=False),
        "norm_bias": False,
        "hidden_act": "gelu",
        "intermediate_size": 4 * read.count("hidden_size"),
        "clip_qkv": float(attention.get("clip_qkv") or 0.0),
        "attention_scale": float(attention.get("softmax_scale") or 0.0),
        "alibi_slopes": _mpt_slopes(read.count("num_attention_heads"), attention.get("alibi_bias_max", 8)),
        "layers": _without_rope(read),
    }


FAMILIES: dict[str, Callable[[Reader], Flags]] = {
    "GPT2LMHeadModel": gpt2,
    "GPTJForCausalLM": gptj,
    "GPTNeoXForCausalLM": gpt_neox,
    "PhiForCausalLM": phi,
    "OPTForCausalLM": opt,
    "FalconForCausalLM": falcon,
    "BloomForCausalLM": bloom,
    "MptForCausalLM": mpt,
}


def _plain(read: Reader, *, bias: bool) -> Flags:
    return {
        "norm": "layer",
        "norm_bias": True,
        "gated_mlp": False,
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": bias,
        "num_kv_heads": read.count("num_attention_heads"),
        "intermediate_size": read.get("n_inner") or 4 * read.count("hidden_size"),
    }


def _without_rope(read: Reader) -> tuple[Any, ...]:
    return tuple(replace(layer, rope=None) for layer in layers_of(read))


def _bloom_slopes(num_heads: int) -> tuple[float, ...]:
    """Press et al. 2022: a geometric series; heads beyond a power of two take every other slope of the next power's."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    return (*slopes, *[2.0 ** (-4 * (2 * i + 1) / power) for i in range(num_heads - power)])


def _mpt_slopes(num_heads: int, bias_max: float) -> tuple[float, ...]:
    power = 2 ** math.ceil(math.log2(num_heads))
    slopes = [2.0 ** (-bias_max * (i + 1) / power) for i in range(power)]
    return tuple(slopes if power == num_heads else (slopes[1::2] + slopes[::2])[:num_heads])


def _bf16(value: float) -> float:
    """The nearest number with 8 bits of mantissa."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)
