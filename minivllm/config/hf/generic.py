"""What of any config.json must be known before transformers' modelling code has read it. The rest is found in the worker."""

from typing import Any

from minivllm.config.hf.parts import LayerSpec, RopeSpec
from minivllm.config.hf.reader import Reader
from minivllm.config.hf.rope import ROPE_TYPES, rope_of
from minivllm.errors import ConfigError

_LENGTHS = ("max_position_embeddings", "max_sequence_length", "max_seq_length", "n_ctx")
_USUAL_LENGTH = 2048
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention", "mlp")  # mlp: keeps nothing
_OTHER_PARTS = ("text_config", "vision_config", "audio_config", "speech_config", "image_config", "vision_tower", "vision")


def generic(read: Reader) -> dict[str, Any]:
    """Fields of a `ModelSpec`; `ConfigError` for what has no chance."""
    _check(read)
    hidden_size, num_heads = read.count("hidden_size", 1), read.count("num_attention_heads", 1)
    return {
        "vocab_size": read.count("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": 1,
        "num_heads": num_heads,
        "num_kv_heads": read.count("num_key_value_heads", num_heads),
        "head_dim": read.count("head_dim", max(1, hidden_size // num_heads)),
        "max_position_embeddings": next((read.count(name) for name in _LENGTHS if read.get(name)), _USUAL_LENGTH),
        "layers": (LayerSpec(rope=_rope(read)),) * read.count("num_hidden_layers", 1),
        "tie_word_embeddings": read.flag("tie_word_embeddings"),
    }


def _check(read: Reader) -> None:
    layer_types = read.get("layer_types")
    others = sorted(set(layer_types) - set(_ATTENTION)) if isinstance(layer_types, list) else []
    reason = ""
    if read.flag("is_encoder_decoder"):
        reason = "it is an encoder with a decoder"
    elif any(isinstance(read.get(name), dict) for name in _OTHER_PARTS):
        reason = "it takes more than text"
    elif others:
        reason = f"it has layers of type {others[0]!r}, which keep something else than keys and values"
    if reason:
        raise ConfigError(f"Model architectures ['{read.architecture}'] are not supported for now: {reason}.", param="model")


def _rope(read: Reader) -> RopeSpec | None:
    """Only for the longest text: the code that uses it reads it by itself."""
    found = {**(read.get("rope_parameters") or {}), **(read.get("rope_scaling") or {})}
    kind = found.get("rope_type") or found.get("type")
    return rope_of(read) if kind in ROPE_TYPES and found.get("factor") and read.get("max_position_embeddings") else None
