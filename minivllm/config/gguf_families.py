"""Architectures of GGUF files: the Hugging Face architecture of each, and fields that only it has. Used by `gguf_model`."""

from collections.abc import Callable
from typing import Any

from minivllm.errors import ConfigError
from minivllm.utils.gguf import GGUFFile

Fields = dict[str, Any]

# Their rows of q and k have the two halves of each rotary pair side by side; elsewhere they are half a head apart.
TURNS_PAIRS = {"llama", "granite", "smollm3"}


def _gemma2(file: GGUFFile, fields: Fields) -> Fields:
    return {"query_pre_attn_scalar": _query_size(fields, 46)}


def _gemma3(file: GGUFFile, fields: Fields) -> Fields:
    local = {"rope_type": "default", "rope_theta": file.number("gemma3.rope.freq_base_swa") or 10000.0}
    return {
        "query_pre_attn_scalar": _query_size(fields, 62),
        "rope_parameters": {"full_attention": fields["rope_parameters"], "sliding_attention": local},
    }


def _query_size(fields: Fields, layers_of_27b: int) -> int:
    """What scales attention scores. Files do not say it; of the largest Gemma alone it is not the size of a head."""
    if fields.get("num_hidden_layers") == layers_of_27b:
        return int(fields.get("hidden_size", 0) // (fields.get("num_attention_heads") or 1))
    return int(fields["head_dim"])


def _llama(file: GGUFFile, fields: Fields) -> Fields:
    return {"architectures": ["MixtralForCausalLM"]} if fields.get("num_experts") else {}


def _phi3(file: GGUFFile, fields: Fields) -> Fields:
    factors = [file.floats(f"rope_factors_{kind}.weight") for kind in ("short", "long")]
    if not all(factors):
        return {}
    original = file.integer("phi3.rope.scaling.original_context_length")
    rope = {
        "rope_type": "longrope",
        "rope_theta": fields["rope_parameters"]["rope_theta"],
        "short_factor": factors[0],
        "long_factor": factors[1],
        "attention_factor": file.number("phi3.rope.scaling.attn_factor"),
        "original_max_position_embeddings": original,
    }
    return {"rope_parameters": rope, "original_max_position_embeddings": original}


def _cohere(file: GGUFFile, fields: Fields) -> Fields:
    return {"use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors}


def _olmo2(file: GGUFFile, fields: Fields) -> Fields:
    if fields.get("sliding_window"):
        raise ConfigError(f"{file.path}: OLMo 3 is not supported as a GGUF file; use its Hugging Face folder.", param="model")
    return {}


def _seed_oss(file: GGUFFile, fields: Fields) -> Fields:
    return {"attention_out_bias": "blk.0.attn_output.bias" in file.tensors}


def _starcoder2(file: GGUFFile, fields: Fields) -> Fields:
    return {"use_bias": fields["attention_bias"]}


def _renormalised(file: GGUFFile, fields: Fields) -> Fields:
    return {"norm_topk_prob": True}


def _granite(file: GGUFFile, fields: Fields) -> Fields:
    return {"logits_scaling": fields["logit_scale"]} if "logit_scale" in fields else {}


def _nothing(file: GGUFFile, fields: Fields) -> Fields:
    return {}


ARCHITECTURES: dict[str, tuple[str, Callable[[GGUFFile, Fields], Fields]]] = {
    "llama": ("LlamaForCausalLM", _llama),  # Mistral, Mixtral and SmolLM2 too
    "qwen2": ("Qwen2ForCausalLM", _nothing),
    "qwen2moe": ("Qwen2MoeForCausalLM", _nothing),
    "qwen3": ("Qwen3ForCausalLM", _nothing),
    "qwen3moe": ("Qwen3MoeForCausalLM", _renormalised),
    "gemma": ("GemmaForCausalLM", _nothing),
    "gemma2": ("Gemma2ForCausalLM", _gemma2),
    "gemma3": ("Gemma3ForCausalLM", _gemma3),
    "phi3": ("Phi3ForCausalLM", _phi3),
    "command-r": ("CohereForCausalLM", _cohere),
    "cohere2": ("Cohere2ForCausalLM", _nothing),
    "glm4": ("Glm4ForCausalLM", _nothing),
    "granite": ("GraniteForCausalLM", _granite),
    "nemotron": ("NemotronForCausalLM", _nothing),
    "olmo2": ("Olmo2ForCausalLM", _olmo2),
    "olmoe": ("OlmoeForCausalLM", _nothing),
    "seed_oss": ("SeedOssForCausalLM", _seed_oss),
    "smollm3": ("SmolLM3ForCausalLM", _nothing),
    "starcoder2": ("Starcoder2ForCausalLM", _starcoder2),
}
