"""`ModelSpec`: a Hugging Face config.json as frozen dimensions and flags; with `config.hf` the only reader of its fields."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minivllm.config.hf import encoders
from minivllm.config.hf.generic import generic
from minivllm.config.hf.parts import EncoderSpec, LatentSpec, LayerSpec, MoESpec, RopeSpec
from minivllm.config.hf.reader import Reader
from minivllm.config.hf.registry import flags_of
from minivllm.config.hf.rope import rotary_dim_of
from minivllm.errors import ConfigError

_SCALED_LIMIT = ("linear", "dynamic")  # these types carry the model beyond max_position_embeddings


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """Dimensions of a model and the flags by which families differ. `architecture` picks the family."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    layers: tuple[LayerSpec, ...]
    dtype: str  # of the checkpoint
    eos_token_ids: tuple[int, ...]
    tie_word_embeddings: bool = False

    norm: str = "rms"  # or layer: with the mean taken off
    norm_eps: float = 1e-6
    norm_weight: bool = True
    norm_bias: bool = False
    norm_plus_one: bool = False  # weights are kept as their difference from 1
    pre_norms: bool = True  # before attention and before the feed-forward layer
    post_norms: bool = False  # after each, before it is added to the residual stream
    residual: str = "sequential"  # or parallel: attention and feed-forward see the same input; parallel-two-norms: by own norms
    final_norm: bool = True
    embed_norm: bool = False
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    logits_soft_cap: float = 0.0

    qkv_bias: bool = False
    o_bias: bool = False
    clip_qkv: float = 0.0  # 0: no limit
    qk_norm: str | None = None  # head: one weight for all heads; heads: one for each; all: over the heads together
    attention_scale: float = 0.0  # 0: head_dim ** -0.5
    scale_by_layer: bool = False  # attention scores are divided by the layer's number
    attention_soft_cap: float = 0.0
    attention_sinks: bool = False
    alibi_slopes: tuple[float, ...] = ()
    learned_positions: int = 0  # rows of the table of positions that is added to the embedding; 0: none
    position_offset: int = 0  # of position 0 in that table
    rotary_dim: int = 0
    rotary_interleaved: bool = False

    hidden_act: str = "silu"
    gated_mlp: bool = True
    mlp_bias: bool = False
    head_bias: bool = False
    moe: MoESpec | None = None
    latent: LatentSpec | None = None
    encoder: EncoderSpec | None = None  # None: a decoder

    own: tuple[int, int] | None = None  # first layer that is computed here and the one after the last; None: all

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def own_layers(self) -> range:
        return range(*(self.own or (0, self.num_layers)))

    @property
    def has_first_layer(self) -> bool:
        return self.own_layers.start == 0

    @property
    def has_last_layer(self) -> bool:
        return self.own_layers.stop == self.num_layers

    @property
    def sliding_window(self) -> int | None:
        """In tokens, if it is the same in every layer."""
        windows = {layer.window for layer in self.layers}
        return (windows.pop() or None) if len(windows) == 1 else None

    @property
    def max_length(self) -> int:
        """The longest sequence the positions reach, rope scaling included unless it is of some layers only."""
        if self.encoder is not None:
            return self.max_position_embeddings - self.position_offset
        ropes = {layer.rope for layer in self.layers if layer.rope is not None}
        rope = ropes.pop() if len(ropes) == 1 else RopeSpec()
        if rope.type == "yarn":
            return int(rope.original_max_position_embeddings * rope.factor)
        return int(self.max_position_embeddings * (rope.factor if rope.type in _SCALED_LIMIT else 1))

    @classmethod
    def of_transformers(cls, config: Mapping[str, Any]) -> "ModelSpec":
        """Likewise for a model that transformers' code computes: only what must be known before that code is there."""
        read = Reader(config, canonical(architecture_of(config)))
        return cls(
            architecture=read.architecture,
            dtype=_dtype(read),
            eos_token_ids=token_ids(config.get("eos_token_id")),
            **generic(read),
        )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelSpec":
        """From the contents of config.json, as transformers 4 or 5 writes it; `ConfigError` if it is no model we know."""
        read, flags = flags_of(Reader(config, canonical(architecture_of(config))))
        num_heads, hidden_size = read.count("num_attention_heads"), read.count("hidden_size")
        num_kv_heads = flags.get("num_kv_heads") or read.count("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            read.refuse(f"{num_heads} attention heads cannot share {num_kv_heads} key/value heads")
        head_dim = flags.get("head_dim") or read.count("head_dim", hidden_size // num_heads)
        values: dict[str, Any] = {
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "intermediate_size": flags.get("intermediate_size") or read.count("intermediate_size"),
            "norm_eps": read.number("norm_eps", 1e-6),
            "tie_word_embeddings": read.flag("tie_word_embeddings"),
            "mlp_bias": read.flag("mlp_bias"),
            "hidden_act": read.get("hidden_act", "silu"),
            "rotary_dim": flags.get("rotary_dim") or rotary_dim_of(read, head_dim),
            **flags,
        }
        return cls(
            architecture=read.architecture,
            vocab_size=read.count("vocab_size"),
            hidden_size=hidden_size,
            num_heads=num_heads,
            max_position_embeddings=read.count("max_position_embeddings"),
            dtype=_dtype(read),
            eos_token_ids=token_ids(config.get("eos_token_id")),
            **values,
        )


def _dtype(read: Reader) -> str:
    return str(read.get("dtype") or read.get("torch_dtype", "float32")).removeprefix("torch.")


def architecture_of(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ConfigError("the model's config.json names no architectures; set them with --hf-overrides.", param="model")
    return str(architectures[0])


def canonical(architecture: str) -> str:
    """Of a decoder the one that generates with the same layers: for LlamaModel it is LlamaForCausalLM."""
    if architecture in encoders.FAMILIES or architecture.endswith("LMHeadModel"):
        return architecture
    base = re.sub("(Model|ForSequenceClassification)$", "", architecture)
    return architecture if base == architecture else "GPT2LMHeadModel" if base == "GPT2" else f"{base}ForCausalLM"


def token_ids(value: object) -> tuple[int, ...]:
    """A token id field of a Hugging Face file: absent, one id or a list of ids."""
    if isinstance(value, int):
        return (value,)
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, list) else ()
