"""`ModelSpec`: a Hugging Face config.json as frozen dimensions and flags; the only reader of its fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minivllm.errors import ConfigError

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
_SCALED_LIMIT = ("linear", "dynamic", "yarn")  # these types carry the model beyond max_position_embeddings


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeSpec:
    """Rotary embedding: base frequency and scaling. Fields that a type does not use keep their defaults."""

    theta: float = 10000.0
    type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_position_embeddings: int = 0  # llama3, yarn, dynamic: positions before scaling
    attention_factor: float | None = None  # yarn: scale of cos and sin; None: from factor and the two mscales
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn: round the correction range to whole dimensions


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """Dimensions of a decoder and the flags by which families differ. `architecture` picks the family."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeSpec
    hidden_act: str
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    sliding_window: int | None  # tokens, the same in every layer
    dtype: str  # of the checkpoint
    eos_token_ids: tuple[int, ...]

    @property
    def max_length(self) -> int:
        """The longest sequence the positions reach, rope scaling included."""
        if self.rope.type == "yarn":
            return int(self.rope.original_max_position_embeddings * self.rope.factor)
        scaled = self.rope.type in _SCALED_LIMIT
        return int(self.max_position_embeddings * self.rope.factor) if scaled else self.max_position_embeddings

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelSpec":
        """From the contents of config.json, as transformers 4 or 5 writes it; `ConfigError` if it is not a decoder we know."""
        architecture = architecture_of(config)
        read = _Reader(config, architecture)
        num_heads = read.count("num_attention_heads")
        hidden_size = read.count("hidden_size")
        num_kv_heads = read.count("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            read.refuse(f"{num_heads} attention heads cannot share {num_kv_heads} key/value heads")
        max_positions = read.count("max_position_embeddings")
        attention_bias = bool(config.get("attention_bias", False))
        qwen2 = architecture == "Qwen2ForCausalLM"  # always has biases on q, k and v, and says so nowhere
        return cls(
            architecture=architecture,
            vocab_size=read.count("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=read.count("intermediate_size"),
            num_layers=read.count("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=read.count("head_dim", hidden_size // num_heads),
            max_position_embeddings=max_positions,
            rms_norm_eps=float(config.get("rms_norm_eps") or 1e-6),
            rope=_rope(config, read, max_positions),
            hidden_act=config.get("hidden_act") or "silu",
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=qwen2 or attention_bias,
            o_bias=attention_bias and not qwen2,
            mlp_bias=bool(config.get("mlp_bias", False)),
            sliding_window=_sliding_window(config, read, qwen2),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch."),
            eos_token_ids=token_ids(config.get("eos_token_id")),
        )


def architecture_of(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ConfigError("the model's config.json names no architectures; set them with --hf-overrides.", param="model")
    return str(architectures[0])


def token_ids(value: object) -> tuple[int, ...]:
    """A token id field of a Hugging Face file: absent, one id or a list of ids."""
    if isinstance(value, int):
        return (value,)
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, list) else ()


class _Reader:
    def __init__(self, config: Mapping[str, Any], architecture: str):
        self.config = config
        self.architecture = architecture

    def count(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(
                f"Model architectures ['{self.architecture}'] are not supported for now: config.json has no {name}.",
                param="model",
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(f"{name} must be a positive integer, got {value!r}")
        return int(value)

    def refuse(self, what: str) -> None:
        raise ConfigError(f"the model's config.json cannot be used: {what}.", param="model")


def _rope(config: Mapping[str, Any], read: _Reader, max_positions: int) -> RopeSpec:
    # transformers 5 writes rope_parameters; older files have rope_theta and rope_scaling, with `type` for `rope_type`.
    found = {**(config.get("rope_parameters") or {}), **(config.get("rope_scaling") or {})}
    kind = found.get("rope_type") or found.get("type") or "default"
    if any(isinstance(v, Mapping) for v in found.values()):
        read.refuse("its layers differ in their rope parameters, which is not supported")
    if kind not in ROPE_TYPES:
        read.refuse(f"rope type {kind!r} is not supported (supported: {', '.join(ROPE_TYPES)})")
    if (config.get("partial_rotary_factor") or found.get("partial_rotary_factor") or 1.0) != 1.0:
        read.refuse("a partial_rotary_factor below 1 is not supported")
    if kind in (*_SCALED_LIMIT, "llama3") and not found.get("factor"):
        read.refuse(f"rope type {kind!r} needs a factor")
    values: dict[str, Any] = {
        name: float(found[name])
        for name in ("factor", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
                     "mscale_all_dim")
        if found.get(name) is not None
    }  # fmt: skip
    original = found.get("original_max_position_embeddings") or config.get("original_max_position_embeddings") or max_positions
    return RopeSpec(
        theta=float(config.get("rope_theta") or found.get("rope_theta") or 10000.0),
        type=kind,
        original_max_position_embeddings=int(original),
        truncate=bool(found.get("truncate", True)),
        **values,
    )


def _sliding_window(config: Mapping[str, Any], read: _Reader, qwen2: bool) -> int | None:
    window = config.get("sliding_window")
    if window is None or not config.get("use_sliding_window", not qwen2):
        return None
    layers = read.count("num_hidden_layers")
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        windowed = kinds.count("sliding_attention")
    else:
        windowed = layers - min(layers, config.get("max_window_layers") or 0) if qwen2 else layers
    if windowed == 0:
        return None
    if windowed != layers:
        read.refuse(f"a sliding window in {windowed} of {layers} layers is not supported")
    return read.count("sliding_window")
