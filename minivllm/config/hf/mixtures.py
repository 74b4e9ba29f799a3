"""Flags of mixtures of experts, and of DeepSeek's latent attention."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from minivllm.config.hf import families
from minivllm.config.hf.layers import layers_of, pattern_of, uniform_layers
from minivllm.config.hf.parts import LatentSpec, LayerSpec, MoESpec
from minivllm.config.hf.reader import Reader

Flags = dict[str, Any]


def mixtral(read: Reader) -> Flags:
    layers = uniform_layers(read, read.get("sliding_window"))
    return {"moe": _moe(read, read.count("intermediate_size"), renormalize=True), "layers": _mixed(layers)}


def qwen2_moe(read: Reader) -> Flags:
    shared = read.count("shared_expert_intermediate_size")
    moe = _moe(read, shared_size=shared, shared_gate=True, renormalize=read.flag("norm_topk_prob"))
    flags = families.qwen2(read)
    return {**flags, "qkv_bias": read.flag("qkv_bias", True), "moe": moe, "layers": _mixed(flags["layers"], _sparse(read))}


def qwen3_moe(read: Reader) -> Flags:
    flags = families.qwen3(read)
    moe = _moe(read, renormalize=read.flag("norm_topk_prob"))
    return {**flags, "moe": moe, "layers": _mixed(flags["layers"], _sparse(read))}


def olmoe(read: Reader) -> Flags:
    return {
        **families.llama(read),
        "qk_norm": "all",
        "clip_qkv": read.number("clip_qkv", 0.0),
        "moe": _moe(read, read.count("intermediate_size"), renormalize=read.flag("norm_topk_prob")),
        "layers": _mixed(layers_of(read)),
    }


def granite_moe(read: Reader) -> Flags:
    moe = _moe(read, read.count("intermediate_size"), renormalize=True)
    return {**families.granite(read), "moe": moe, "layers": _mixed(layers_of(read))}


def phimoe(read: Reader) -> Flags:
    jitter = read.number("router_jitter_noise", 0.01)
    return {
        **families.llama(read),
        "norm": "layer",
        "norm_bias": True,
        "head_bias": read.flag("lm_head_bias"),
        "moe": _moe(read, read.count("intermediate_size"), score="sparsemixer", jitter=jitter),
        "layers": _mixed(uniform_layers(read, read.get("sliding_window"))),
    }


def gpt_oss(read: Reader) -> Flags:
    limit = read.number("swiglu_limit", 7.0)
    return {
        "qkv_bias": True,
        "o_bias": True,
        "attention_sinks": True,
        "moe": _moe(read, read.count("intermediate_size"), renormalize=True, bias=True, swiglu_limit=limit),
        "layers": _mixed(layers_of(read, read.get("sliding_window"), pattern_of(read, 2))),
    }


def glm4_moe(read: Reader) -> Flags:
    return {
        "qkv_bias": read.flag("attention_bias"),
        "qk_norm": "head" if read.flag("use_qk_norm") else None,
        "moe": _deepseek3_moe(read),
        "layers": _mixed(layers_of(read), _after_dense(read)),
    }


def ernie_moe(read: Reader) -> Flags:
    count = read.count("num_hidden_layers")
    first, last = read.get("moe_layer_start_index", 1), read.get("moe_layer_end_index", count - 1)
    every = read.count("moe_layer_interval", 1)
    sparse = [first <= index <= (last if last >= 0 else count) and (index + 1) % every == 0 for index in range(count)]
    size = read.count("moe_intermediate_size")
    shared = read.get("moe_num_shared_experts", 0) * size
    moe = _moe(read, size, shared_size=shared, renormalize=True, score_bias=read.flag("moe_use_aux_free", True))
    return {**families.ernie(read), "moe": moe, "layers": _mixed(layers_of(read), sparse)}


def deepseek2(read: Reader) -> Flags:
    grouped = read.get("topk_method") == "group_limited_greedy"
    moe = _moe(
        read,
        shared_size=read.get("n_shared_experts", 0) * read.count("moe_intermediate_size"),
        renormalize=read.flag("norm_topk_prob"),
        scale=read.number("routed_scaling_factor", 1.0),
        num_groups=read.count("n_group", 1) if grouped else 1,
        top_groups=read.count("topk_group", 1) if grouped else 1,
    )
    return {**_latent(read), "moe": moe, "layers": _mixed(layers_of(read), _after_dense(read))}


def deepseek3(read: Reader) -> Flags:
    return {**_latent(read), "moe": _deepseek3_moe(read), "layers": _mixed(layers_of(read), _after_dense(read))}


FAMILIES: dict[str, Callable[[Reader], Flags]] = {
    "MixtralForCausalLM": mixtral,
    "Qwen2MoeForCausalLM": qwen2_moe,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "OlmoeForCausalLM": olmoe,
    "GraniteMoeForCausalLM": granite_moe,
    "PhimoeForCausalLM": phimoe,
    "PhiMoEForCausalLM": phimoe,
    "GptOssForCausalLM": gpt_oss,
    "Glm4MoeForCausalLM": glm4_moe,
    "Ernie4_5_MoeForCausalLM": ernie_moe,
    "DeepseekV2ForCausalLM": deepseek2,
    "DeepseekV3ForCausalLM": deepseek3,
}


def _moe(read: Reader, size: int = 0, **values: Any) -> MoESpec:
    num_experts, top_k = read.count("num_experts"), read.count("num_experts_per_tok")
    if top_k > num_experts:
        read.refuse(f"{top_k} of {num_experts} experts cannot be chosen")
    size = size or read.count("moe_intermediate_size")
    return MoESpec(num_experts=num_experts, top_k=top_k, intermediate_size=size, **values)


def _deepseek3_moe(read: Reader) -> MoESpec:
    return _moe(
        read,
        shared_size=read.get("n_shared_experts", 0) * read.count("moe_intermediate_size"),
        score="sigmoid",
        score_bias=True,
        renormalize=read.flag("norm_topk_prob", True),
        scale=read.number("routed_scaling_factor", 1.0),
        num_groups=read.count("n_group", 1),
        top_groups=read.count("topk_group", 1),
        group_score="top2",
    )


def _latent(read: Reader) -> Flags:
    latent = LatentSpec(
        q_rank=read.get("q_lora_rank", 0),
        kv_rank=read.count("kv_lora_rank"),
        nope_dim=read.count("qk_nope_head_dim"),
        rope_dim=read.count("qk_rope_head_dim"),
        v_dim=read.count("v_head_dim"),
    )
    head_dim = latent.nope_dim + latent.rope_dim
    rope = layers_of(read)[0].rope
    sharpened = 1.0
    if rope is not None and rope.type != "default" and rope.mscale_all_dim and rope.factor > 1:
        sharpened = 0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0
    return {
        **families.llama(read),
        "latent": latent,
        "num_kv_heads": 1,
        "head_dim": head_dim,
        "rotary_dim": latent.rope_dim,
        "rotary_interleaved": read.flag("rope_interleave", True),
        "attention_scale": head_dim**-0.5 * sharpened**2,
    }


def _mixed(layers: Sequence[LayerSpec], sparse: Sequence[bool] | None = None) -> tuple[LayerSpec, ...]:
    """All layers, or the `sparse` ones, have experts."""
    return tuple(replace(layer, is_moe=sparse is None or sparse[index]) for index, layer in enumerate(layers))


def _sparse(read: Reader) -> list[bool]:
    step, dense = read.count("decoder_sparse_step", 1), read.get("mlp_only_layers", [])
    return [(index + 1) % step == 0 and index not in dense for index in range(read.count("num_hidden_layers"))]


def _after_dense(read: Reader) -> list[bool]:
    first, every = read.get("first_k_dense_replace", 0), read.count("moe_layer_freq", 1)
    return [index >= first and index % every == 0 for index in range(read.count("num_hidden_layers"))]
