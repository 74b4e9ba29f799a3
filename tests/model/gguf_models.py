"""Writes tiny checkpoints of transformers as GGUF files, by the gguf package, as llama.cpp's converter does."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file

# kind of the GGUF file → row of FAMILIES, and what of it must be otherwise: files of that kind cannot say it.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama-head-dim", {"hidden_act": "silu"}),
    "llama (Mistral)": ("mistral-full", {}),
    "llama (Mixtral)": ("mixtral", {}),
    "qwen2": ("qwen2", {}),
    "qwen2moe": ("qwen2-moe", {"mlp_only_layers": []}),
    "qwen3": ("qwen3", {}),
    "qwen3moe": ("qwen3-moe", {"decoder_sparse_step": 1}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 16}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "layer_types": None}),
    "phi3": ("phi3", {}),
    "phi3 (longrope)": ("phi3-longrope", {}),
    "phi3 (partial rotary)": ("phi4-mini", {}),
    "command-r": ("cohere", {}),
    "cohere2": ("cohere2", {"num_hidden_layers": 4, "layer_types": None}),
    "glm4": ("glm4", {"attention_bias": True}),
    "granite": ("granite", {}),
    "nemotron": ("nemotron", {}),
    "olmo2": ("olmo2", {}),
    "olmoe": ("olmoe", {"clip_qkv": None}),
    "seed_oss": ("seed-oss", {}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}),
    "starcoder2": ("starcoder2", {"sliding_window": None}),
}
_KINDS = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
_PERMUTED = ("llama", "granite", "smollm3")
_PLUS_ONE = ("gemma", "gemma2", "gemma3", "nemotron")
_MERGED = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}


def write(row: str, checkpoint: Any, path: Path, stored: dict[str, str] | None = None, **metadata: Any) -> Path:
    """stored: types of tensors, by a part of their name; of others F32."""
    kind = row.split(" ")[0]
    writer = gguf.GGUFWriter(path, kind)
    found = _metadata(kind, checkpoint.reference.config) | metadata
    for key, value in found.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    for name, tensor in _tensors(kind, checkpoint).items():
        known = next((gguf.GGMLQuantizationType[kind] for part, kind in (stored or {}).items() if part in name), None)
        writer.add_tensor(name, tensor if known is None else gguf.quants.quantize(tensor, known), raw_dtype=known)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(kind: str, config: Any) -> dict[str, Any]:
    heads = config.num_attention_heads
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    share = rope.get("partial_rotary_factor") or 1.0
    norm_eps = getattr(config, "rms_norm_eps", None)
    other_eps = (
        getattr(config, "layer_norm_eps", None) or getattr(config, "norm_eps", None) or getattr(config, "norm_epsilon", 0.0)
    )
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon" if norm_eps else "attention.layer_norm_epsilon": float(norm_eps or other_eps),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(head_dim * share),
    }
    if rope["rope_type"] == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        scale = config.max_position_embeddings / original
        values |= {
            "rope.scaling.original_context_length": original,
            "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(scale) / np.log(original))),
        }
    if kind == "gemma3":
        values["rope.freq_base_swa"] = float(config.rope_parameters["sliding_attention"]["rope_theta"])
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if experts:
        values |= {"expert_count": experts, "expert_used_count": config.num_experts_per_tok}
    optional = {
        "attention.sliding_window": "sliding_window",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "attention.scale": "attention_multiplier",
        "logit_scale": "logits_scaling" if kind == "granite" else "logit_scale",
    }
    values |= {key: value for key, name in optional.items() if (value := getattr(config, name, None)) is not None}
    return {f"{kind}.{key}": value for key, value in values.items()}


def _tensors(kind: str, checkpoint: Any) -> dict[str, np.ndarray]:
    config = checkpoint.reference.config
    names = gguf.get_tensor_name_map(_KINDS[kind], config.num_hidden_layers)
    found: dict[str, np.ndarray] = {}
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, tensor in load_file(checkpoint.folder / "model.safetensors").items():
        data = tensor.float().numpy()
        if kind in _PLUS_ONE and name.endswith("norm.weight"):
            data = data + 1
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if kind in _PERMUTED and part in name:
                data = data.reshape(heads, 2, -1, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
        if ".experts." in name:
            before, after = name.split(".experts.")
            index, part, _ = after.split(".")
            experts.setdefault(f"blk.{before.split('.')[2]}.ffn_{_MERGED[part]}_exps.weight", {})[int(index)] = data
            continue
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        found[theirs] = np.ascontiguousarray(data.squeeze())
    found |= {name: np.stack([one[i] for i in range(len(one))]) for name, one in experts.items()}
    rope = getattr(config, "rope_parameters", {})
    for length in ("long", "short"):
        if f"{length}_factor" in rope:
            found[f"rope_factors_{length}.weight"] = np.array(rope[f"{length}_factor"], dtype=np.float32)
    return found
