"""What the metadata of a GGUF file say, in the words of a Hugging Face folder's JSON files. Used by `resolve`."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from minivllm.config.gguf_families import ARCHITECTURES, TURNS_PAIRS
from minivllm.errors import ConfigError
from minivllm.utils.gguf import GGUFFile, first_part

_INTEGERS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
_NUMBERS = {
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logit_scale": "logit_scale",
    "clip_qkv": "attention.clamp_kqv",
}
_SAMPLING = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_UNUSED = 5  # token type
# Scalings of Llama 3 models. The file has only their effect, a divisor per frequency.
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def find_file(path: Path, load_format: str) -> Path | None:
    """The GGUF file that a model's path means: itself, or the only one in a folder without safetensors; else None. Of a model
    in several files it is the first, whichever was named.
    """
    if path.is_file():
        if load_format in ("safetensors", "pt", "sharded_state"):
            raise ConfigError(f"--load-format {load_format} reads a folder, and {path} is a GGUF file.", param="load_format")
        return first_part(path)
    found = sorted({first_part(file) for file in path.glob("*.gguf")})
    if load_format == "gguf" and len(found) != 1:
        raise ConfigError(f"{path} has {len(found)} models in *.gguf files: give the path of the one to load.", param="model")
    usual = load_format in ("safetensors", "pt", "sharded_state") or any(path.glob("*.safetensors"))
    return found[0] if len(found) == 1 and (load_format == "gguf" or not usual) else None


def read_config(file: GGUFFile) -> dict[str, Any]:
    """As config.json. ConfigError for an architecture that we do not have."""
    kind = file.text("general.architecture") or ""
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"Model architectures ['{kind}'] are not supported for now. "
            f"Supported architectures of GGUF files: {', '.join(ARCHITECTURES)}",
            param="model",
        )
    if "token_embd.weight" not in file.tensors:
        raise ConfigError(f"{file.path} has no token_embd.weight: it is not a language model.", param="model")
    values: dict[str, int | float | None] = {name: file.integer(f"{kind}.{key}") for name, key in _INTEGERS.items()}
    values |= {name: file.number(f"{kind}.{key}") for name, key in _NUMBERS.items()}
    head_dim = int(values["head_dim"] or int(values["hidden_size"] or 0) // int(values["num_attention_heads"] or 1))
    rotary = file.integer(f"{kind}.rope.dimension_count") or head_dim
    if rotary != head_dim and kind in TURNS_PAIRS:
        raise ConfigError(
            f"{file.path} turns {rotary} of {head_dim} dimensions of a head, which is not supported.", param="model"
        )
    architecture, more = ARCHITECTURES[kind]
    fields = {
        "architectures": [architecture],
        **{name: value for name, value in values.items() if value is not None},
        "head_dim": head_dim,
        "rotary_dim": rotary,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "rope_parameters": _rope(file, kind, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "dtype": _dtype(file),
        "eos_token_id": list(eos_token_ids(file)),
    }
    return {**fields, **more(file, fields)}


def turns_pairs(file: GGUFFile) -> bool:
    return file.text("general.architecture") in TURNS_PAIRS


def read_generation(file: GGUFFile) -> dict[str, Any]:
    """As generation_config.json."""
    found = {name: file.number(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    values: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    if "top_k" in values:
        values["top_k"] = int(values["top_k"])
    return values


def eos_token_ids(file: GGUFFile) -> tuple[int, ...]:
    """The tokens that end a text."""
    ids = (file.integer(f"tokenizer.ggml.{key}") for key in _EOS_KEYS)
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def num_tokens(file: GGUFFile) -> int:
    """Of the vocabulary, without the unused entries that fill it up."""
    count, types = len(file.texts("tokenizer.ggml.tokens")), file.integers("tokenizer.ggml.token_type")
    if len(types) == count:
        while count and types[count - 1] == _UNUSED:
            count -= 1
    return count


def _dtype(file: GGUFFile) -> str:
    """Of most weights. Quantized ones have none; their scales are float16, whose range bfloat16 has too."""
    largest = max(file.tensors.values(), key=lambda tensor: tensor.end - tensor.begin)
    return {"F32": "float32", "F16": "float16"}.get(largest.type.name, "bfloat16")


def _rope(file: GGUFFile, kind: str, head_dim: int) -> dict[str, Any]:
    theta = file.number(f"{kind}.rope.freq_base") or 10000.0
    scaling = file.text(f"{kind}.rope.scaling.type") or "none"
    factor = file.number(f"{kind}.rope.scaling.factor") or file.number(f"{kind}.rope.scale_linear")
    found: dict[str, Any] = {"rope_theta": theta, "rope_type": "default"}
    if scaling not in ("none", "linear", "yarn", *(["longrope"] if kind == "phi3" else [])):
        raise ConfigError(f"{file.path}: rope scaling {scaling!r} is not supported (supported: linear, yarn).", param="model")
    if "rope_freqs.weight" in file.tensors:
        return found | _llama3_rope(file, theta, head_dim)
    if factor is not None and factor not in (0.0, 1.0):
        found |= {"rope_type": "yarn" if scaling == "yarn" else "linear", "factor": factor}
        original = file.integer(f"{kind}.rope.scaling.original_context_length")
        if original:
            found["original_max_position_embeddings"] = original
    return found


def _llama3_rope(file: GGUFFile, theta: float, head_dim: int) -> dict[str, Any]:
    divisors = file.floats("rope_freqs.weight")
    if len(divisors) == head_dim // 2:
        found = {"rope_type": "llama3", "factor": round(max(divisors), 4), **_LLAMA3_ROPE}
        expected = _llama3_divisors(found, theta, head_dim)
        if all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(divisors, expected, strict=True)):
            return found
    raise ConfigError(f"{file.path}: its rope_freqs are not those of Llama 3, which is not supported.", param="model")


def _llama3_divisors(rope: dict[str, Any], theta: float, head_dim: int) -> Iterable[float]:
    low, high, original = (rope[name] for name in _LLAMA3_ROPE)
    for i in range(0, head_dim, 2):
        turns = original / (2 * math.pi * theta ** (i / head_dim))
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        yield 1 / ((1 - smooth) / rope["factor"] + smooth)
