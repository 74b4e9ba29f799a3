"""Which family an architecture belongs to: defaults of its config.json, and its flags of a `ModelSpec`."""

from collections.abc import Callable
from typing import Any

from minivllm.config.hf import encoders, families, legacy, mixtures
from minivllm.config.hf.layers import layers_of
from minivllm.config.hf.reader import Reader

Flags = dict[str, Any]


def flags_of(read: Reader) -> tuple[Reader, Flags]:
    """The reader with the family's defaults, and flags by name of a ModelSpec's field, `layers` among them."""
    read = read.with_defaults(**DEFAULTS.get(read.architecture, {}))
    flags = FAMILIES.get(read.architecture, families.llama)(read)
    return read, {"layers": flags.get("layers") or layers_of(read), **flags}


def has_family(architecture: str) -> bool:
    return architecture in FAMILIES


# Values of fields that a config.json may leave out because they are the usual ones of their family.
_TIED = {"tie_word_embeddings": True}
_LEGACY_LENGTH = {"max_position_embeddings": 2048}
DEFAULTS: dict[str, Flags] = {
    "GemmaForCausalLM": {**_TIED, "hidden_act": "gelu_pytorch_tanh", "head_dim": 256},
    "Gemma2ForCausalLM": {**_TIED, "hidden_act": "gelu_pytorch_tanh", "head_dim": 256, "sliding_window": 4096},
    "Gemma3ForCausalLM": {**_TIED, "hidden_act": "gelu_pytorch_tanh", "head_dim": 256, "sliding_window": 4096},
    "PhiForCausalLM": {"partial_rotary_factor": 0.5, "hidden_act": "gelu_new"},
    "SmolLM3ForCausalLM": _TIED,
    "CohereForCausalLM": {**_TIED, "norm_eps": 1e-5},
    "Cohere2ForCausalLM": {**_TIED, "norm_eps": 1e-5},
    "StableLmForCausalLM": {"partial_rotary_factor": 0.25, "norm_eps": 1e-5},
    "Starcoder2ForCausalLM": {**_TIED, "norm_eps": 1e-5, "hidden_act": "gelu_pytorch_tanh"},
    "GlmForCausalLM": {"partial_rotary_factor": 0.5},
    "Glm4ForCausalLM": {"partial_rotary_factor": 0.5},
    "Glm4MoeForCausalLM": {"partial_rotary_factor": 0.5},
    "NemotronForCausalLM": {"partial_rotary_factor": 0.5, "norm_eps": 1e-5, "hidden_act": "relu2"},
    "Ernie4_5ForCausalLM": {**_TIED, "rope_theta": 500000.0, "norm_eps": 1e-5},
    "Ernie4_5_MoeForCausalLM": {**_TIED, "rope_theta": 500000.0, "norm_eps": 1e-5},
    "GPTNeoXForCausalLM": {"partial_rotary_factor": 0.25, "hidden_act": "gelu", "norm_eps": 1e-5},
    "GPT2LMHeadModel": {**_TIED, "hidden_act": "gelu_new", "norm_eps": 1e-5},
    "GPTJForCausalLM": {"hidden_act": "gelu_new", "norm_eps": 1e-5},
    "OPTForCausalLM": {**_TIED, "hidden_act": "relu"},
    "FalconForCausalLM": {**_TIED, **_LEGACY_LENGTH, "hidden_act": "gelu", "norm_eps": 1e-5},
    "BloomForCausalLM": {**_TIED, **_LEGACY_LENGTH, "norm_eps": 1e-5},
    "MptForCausalLM": {**_TIED, **_LEGACY_LENGTH, "norm_eps": 1e-5},
}

FAMILIES: dict[str, Callable[[Reader], Flags]] = {
    "LlamaForCausalLM": families.llama,
    "MistralForCausalLM": families.mistral,
    "MinistralForCausalLM": families.mistral,
    "Qwen2ForCausalLM": families.qwen2,
    "Qwen3ForCausalLM": families.qwen3,
    "GemmaForCausalLM": families.gemma,
    "Gemma2ForCausalLM": families.gemma2,
    "Gemma3ForCausalLM": families.gemma3,
    "Phi3ForCausalLM": families.phi3,
    "SmolLM3ForCausalLM": families.smollm3,
    "GraniteForCausalLM": families.granite,
    "CohereForCausalLM": families.cohere,
    "Cohere2ForCausalLM": families.cohere2,
    "OlmoForCausalLM": families.olmo,
    "Olmo2ForCausalLM": families.olmo2,
    "Olmo3ForCausalLM": families.olmo3,
    "StableLmForCausalLM": families.stablelm,
    "Starcoder2ForCausalLM": families.starcoder2,
    "GlmForCausalLM": families.glm,
    "Glm4ForCausalLM": families.glm4,
    "Exaone4ForCausalLM": families.exaone4,
    "NemotronForCausalLM": families.nemotron,
    "SeedOssForCausalLM": families.seed_oss,
    "Ernie4_5ForCausalLM": families.ernie,
    **legacy.FAMILIES,
    **mixtures.FAMILIES,
    **encoders.FAMILIES,
}
