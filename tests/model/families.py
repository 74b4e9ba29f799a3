"""One tiny configuration a row: name → transformers' configuration class, model class, values. Read by conftest."""

from typing import Any

COMMON = {"vocab_size": 160, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.2}
_SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_GPT = {"n_positions": 64, "n_embd": 48, "n_layer": 3, "n_head": 6}
_EXPERTS = {"num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_DEEPSEEK = _EXPERTS | {
    "num_key_value_heads": 6,
    "n_routed_experts": 6,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "routed_scaling_factor": 1.5,
    "n_group": 3,
    "topk_group": 2,
}
_MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 7}


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1000.0, "rope_type": kind, **values}}


def _longrope(original: int, longest: int, **values: float) -> dict[str, Any]:
    rope = {"short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.0, 1.9, 3.0, 4.1]}
    return {
        **_rope("longrope", **rope, **values, original_max_position_embeddings=original),
        "original_max_position_embeddings": original,
        "max_position_embeddings": longest,
    }


def _row(name: str, values: dict[str, Any], model: str = "", sizes: dict[str, Any] = _SIZES) -> tuple[str, str, dict[str, Any]]:
    return f"{name}Config", model or f"{name}ForCausalLM", {**COMMON, **sizes, **values}


FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama2": _row("Llama", {"num_key_value_heads": 6, "max_position_embeddings": 96}),
    "llama-tied": _row("Llama", {"tie_word_embeddings": True}),
    "llama-biases": _row("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": _row("Llama", {"head_dim": 16, "hidden_act": "gelu"}),
    "llama3": _row(
        "Llama",
        _rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
        | {"max_position_embeddings": 128},
    ),
    "linear": _row("Llama", _rope("linear", factor=2.0)),
    "dynamic": _row("Llama", _rope("dynamic", factor=2.0)),
    "yarn": _row("Llama", _rope("yarn", factor=2.0, original_max_position_embeddings=32, beta_fast=4.0)),
    "mistral": _row("Mistral", {"sliding_window": 7}),
    "mistral-full": _row("Mistral", {"sliding_window": None}),
    "ministral": _row("Ministral", {**_MIXED, "head_dim": 16}),
    "qwen2": _row("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-untied": _row("Qwen2", {}),
    "qwen2-window": _row("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": _row("Qwen3", {"head_dim": 16}),
    "gemma": _row("Gemma", {"head_dim": 16}),
    "gemma2": _row(
        "Gemma2",
        {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 24}
        | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0},
    ),
    "gemma3": _row(
        "Gemma3Text",
        {**_MIXED, "head_dim": 16, "query_pre_attn_scalar": 24}
        | {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0},
            }
        },
        model="Gemma3ForCausalLM",
    ),
    "phi3": _row("Phi3", {"sliding_window": 9}),
    "phi3-longrope": _row("Phi3", _longrope(8, 64)),
    "phi3-longrope-short": _row("Phi3", _longrope(64, 128)),
    "phi4-mini": _row(
        "Phi3",
        {"tie_word_embeddings": True, "head_dim": 16} | _rope("default", partial_rotary_factor=0.75),
    ),
    "smollm3": _row("SmolLM3", {"no_rope_layers": [1, 0, 1]}),
    "granite": _row(
        "Granite",
        {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2},
    ),
    "cohere": _row("Cohere", {"logit_scale": 0.3, "use_qk_norm": True}),
    "cohere2": _row("Cohere2", {**_MIXED, "logit_scale": 0.3, "head_dim": 16}),
    "olmo": _row("Olmo", {"clip_qkv": 1.0}),
    "olmo2": _row("Olmo2", {}),
    "olmo3": _row(
        "Olmo3",
        {
            **_MIXED,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 2.0}
                | {"original_max_position_embeddings": 32, "beta_fast": 4.0},
            },
        },
    ),
    "stablelm": _row("StableLm", {"use_qkv_bias": True, "qk_layernorm": True} | _rope("default", partial_rotary_factor=0.5)),
    "stablelm-parallel": _row("StableLm", {"use_parallel_residual": True}),
    "starcoder2": _row("Starcoder2", {"sliding_window": 7}),
    "glm": _row("Glm", {"head_dim": 16}),
    "glm4": _row("Glm4", {"head_dim": 8}),
    "exaone4": _row("Exaone4", _MIXED),
    "exaone4-full": _row("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "nemotron": _row("Nemotron", {"head_dim": 8}),
    "seed-oss": _row("SeedOss", {"head_dim": 16}),
    "ernie4.5": _row("Ernie4_5", {"head_dim": 8, "use_bias": True}),
    "phi2": _row("Phi", {"qk_layernorm": True, "num_key_value_heads": 6}),
    "gpt-neox": _row("GPTNeoX", {}),
    "gpt-neox-sequential": _row("GPTNeoX", {"use_parallel_residual": False}),
    "gpt2": _row("GPT2", {"scale_attn_by_inverse_layer_idx": True}, model="GPT2LMHeadModel", sizes=_GPT),
    "gptj": _row("GPTJ", {"rotary_dim": 4}, sizes=_GPT),
    "opt": _row("OPT", {"ffn_dim": 80, "word_embed_proj_dim": 48, "init_std": 0.2}),
    "falcon": _row("Falcon", {}),
    "falcon-new": _row("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon-alibi": _row("Falcon", {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True}),
    "bloom": _row("Bloom", {"n_layer": 3, "n_head": 6, "hidden_size": 48}, sizes={}),
    "mpt": _row("Mpt", {"d_model": 48, "n_heads": 6, "n_layers": 3, "max_seq_len": 64}, sizes={}),
    "mixtral": _row("Mixtral", _EXPERTS),
    "qwen2-moe": _row("Qwen2Moe", _EXPERTS | {"shared_expert_intermediate_size": 40, "mlp_only_layers": [1]}),
    "qwen3-moe": _row("Qwen3Moe", _EXPERTS | {"norm_topk_prob": True, "decoder_sparse_step": 2}),
    "olmoe": _row("Olmoe", _EXPERTS | {"clip_qkv": 1.0}),
    "granite-moe": _row("GraniteMoe", _EXPERTS | {"residual_multiplier": 0.5, "attention_multiplier": 0.3}),
    "phimoe": _row("Phimoe", _EXPERTS | {"attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.1}),
    "phimoe-longrope": _row("Phimoe", _EXPERTS | _longrope(64, 128, long_mscale=1.2, short_mscale=1.2)),
    "gpt-oss": _row("GptOss", _EXPERTS | _MIXED | {"head_dim": 16, "swiglu_limit": 0.5}),
    "glm4-moe": _row(
        "Glm4Moe",
        _EXPERTS
        | {"n_routed_experts": 6, "use_qk_norm": True, "n_group": 3, "topk_group": 2}
        | {"attention_bias": True, "head_dim": 8, "routed_scaling_factor": 1.5},
    ),
    "ernie-moe": _row("Ernie4_5_Moe", _EXPERTS | {"moe_k": 2, "moe_num_experts": 6, "moe_layer_end_index": 2}),
    "deepseek-v2": _row("DeepseekV2", _DEEPSEEK | {"q_lora_rank": 24, "topk_method": "group_limited_greedy"}),
    "deepseek-v2-lite": _row(
        "DeepseekV2",
        _DEEPSEEK
        | {"q_lora_rank": None}
        | _rope("yarn", factor=2.0, original_max_position_embeddings=32, beta_fast=4.0, mscale=0.7, mscale_all_dim=0.9),
    ),
    "deepseek-v3": _row("DeepseekV3", _DEEPSEEK | {"q_lora_rank": 24}),
}
