"""Rotary embedding of a config.json, as transformers 4 or 5 writes it."""

from collections.abc import Mapping
from typing import Any

from minivllm.config.hf.parts import RopeSpec
from minivllm.config.hf.reader import Reader

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_NEED_FACTOR = ("linear", "dynamic", "yarn", "llama3")
_NUMBERS = (
    "factor", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
)  # fmt: skip


def rope_of(read: Reader, layer_type: str = "") -> RopeSpec:
    """Of the layers of a type, if types differ."""
    # transformers 5 writes rope_parameters; older files have rope_theta and rope_scaling, with `type` for `rope_type`.
    found = {**read.get("rope_parameters", {}), **read.get("rope_scaling", {})}
    if any(isinstance(v, Mapping) for v in found.values()):
        if not isinstance(found.get(layer_type), Mapping):
            read.refuse(f"it has no rope parameters for layers of type {layer_type or 'full_attention'!r}")
        return _rope(read, found[layer_type])
    return _rope(read, found)


def _rope(read: Reader, found: Mapping[str, Any]) -> RopeSpec:
    kind = found.get("rope_type") or found.get("type") or "default"
    kind = "longrope" if kind == "su" else kind  # as Phi-3 called it at first
    if kind not in ROPE_TYPES:
        read.refuse(f"rope type {kind!r} is not supported (supported: {', '.join(ROPE_TYPES)})")
    if kind in _NEED_FACTOR and not found.get("factor"):
        read.refuse(f"rope type {kind!r} needs a factor")
    values: dict[str, Any] = {name: float(found[name]) for name in _NUMBERS if found.get(name) is not None}
    max_positions = read.count("max_position_embeddings")
    original = int(found.get("original_max_position_embeddings") or read.get("original_max_position_embeddings", max_positions))
    if kind == "longrope":
        if found.get("long_mscale"):
            values["attention_factor"] = float(found["long_mscale"])
        values["factor"] = values.get("factor") or max_positions / original
        for name in ("short_factor", "long_factor"):
            if not isinstance(found.get(name), list):
                read.refuse(f"rope type 'longrope' needs {name}, a list of numbers")
            values[name] = tuple(float(v) for v in found[name])
    return RopeSpec(
        theta=float(found.get("rope_theta") or read.number("rope_theta", 10000.0)),
        type=kind,
        original_max_position_embeddings=original,
        truncate=bool(found.get("truncate", True)),
        **values,
    )


def rotary_dim_of(read: Reader, head_dim: int) -> int:
    """Dimensions of a head that are turned: the first ones."""
    of_rope = {**read.get("rope_parameters", {}), **read.get("rope_scaling", {})}.get("partial_rotary_factor")
    share = float(of_rope or read.number("partial_rotary_factor", 1.0))
    dim = read.get("rotary_dim") or int(head_dim * share)
    if not 0 < dim <= head_dim or dim % 2:
        read.refuse(f"{dim} of {head_dim} dimensions of a head cannot be turned")
    return int(dim)
