"""Encoders: BERT, RoBERTa with its kin, ModernBERT. Their flags of a `ModelSpec`, one function a family."""

from collections.abc import Callable
from itertools import product
from typing import Any

from minivllm.config.hf.parts import EncoderSpec, LayerSpec, RopeSpec
from minivllm.config.hf.reader import Reader

Flags = dict[str, Any]


def bert(read: Reader) -> Flags:
    if read.get("position_embedding_type", "absolute") != "absolute" or read.flag("is_decoder"):
        read.refuse("it is not an encoder with absolute positions")
    return {
        "norm": "layer",
        "norm_eps": read.number("norm_eps", 1e-12),
        "norm_bias": True,
        "layers": (LayerSpec(),) * read.count("num_hidden_layers"),
        "learned_positions": read.count("max_position_embeddings"),
        "hidden_act": read.get("hidden_act", "gelu"),
        "encoder": EncoderSpec(type_vocab_size=read.count("type_vocab_size", 2)),
    }


def roberta(read: Reader) -> Flags:
    # Positions are counted from behind the padding id: an accident of the training code that stayed.
    return {**bert(read), "position_offset": int(read.get("pad_token_id", 1)) + 1}


def modernbert(read: Reader) -> Flags:
    count, every = read.count("num_hidden_layers"), read.count("global_attn_every_n_layers", 3)
    kinds = read.get("layer_types") or ["sliding_attention" if i % every else "full_attention" for i in range(count)]
    bias = read.flag("attention_bias")
    # The file's number is the width of the window, and a key may be half of it away, on either side.
    window = read.count("local_attention", 128) // 2 + 1
    full, local = (
        _modernbert_rope(read, *names)
        for names in (("full_attention", "global_rope_theta", 160000.0), ("sliding_attention", "local_rope_theta", 10000.0))
    )
    return {
        "norm": "layer",
        "norm_eps": read.number("norm_eps", 1e-5),
        "norm_bias": read.flag("norm_bias"),
        "layers": tuple(LayerSpec(window=window, rope=local) if "sliding" in k else LayerSpec(rope=full) for k in kinds),
        "rotary_dim": read.count("hidden_size") // read.count("num_attention_heads"),
        "qkv_bias": bias,
        "o_bias": bias,
        "hidden_act": read.get("hidden_act", "gelu"),
        "encoder": EncoderSpec(
            classifier_pooling=read.get("classifier_pooling", "cls"),
            classifier_bias=read.flag("classifier_bias"),
            classifier_act=read.get("classifier_activation", "gelu"),
        ),
    }


def _modernbert_rope(read: Reader, kind: str, old_name: str, default: float) -> RopeSpec:
    """Only of the plain type: transformers 5 writes both kinds of layers into one field, 4 into two."""
    found = read.get("rope_parameters", {}).get(kind) or {}
    if found.get("rope_type", "default") != "default" or read.get("rope_scaling"):
        read.refuse("ModernBERT with scaled rotary embeddings is not supported")
    return RopeSpec(theta=float(found.get("rope_theta") or read.number(old_name, default)))


_BY_FAMILY: dict[str, Callable[[Reader], Flags]] = {
    "Bert": bert,
    "Roberta": roberta,
    "XLMRoberta": roberta,
    "Camembert": roberta,
    "ModernBert": modernbert,
}
_USES = ("Model", "ForMaskedLM", "ForSequenceClassification")
FAMILIES = {family + use: flags for (family, flags), use in product(_BY_FAMILY.items(), _USES)}
