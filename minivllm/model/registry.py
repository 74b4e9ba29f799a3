"""Which family module builds which architecture; a new architecture that a family covers is one line here."""

import importlib

from minivllm.errors import ConfigError
from minivllm.model.interface import CausalLM

_FAMILIES = "minivllm.model.families"
_LLAMA = "llama:LlamaForCausalLM"

ARCHITECTURES: dict[str, str] = {
    "BloomForCausalLM": "gpt:BloomForCausalLM",
    "CohereForCausalLM": "llama:CohereForCausalLM",
    "Cohere2ForCausalLM": "llama:CohereForCausalLM",
    "Ernie4_5ForCausalLM": _LLAMA,
    "Exaone4ForCausalLM": "llama:Olmo2ForCausalLM",
    "FalconForCausalLM": "gpt:FalconForCausalLM",
    "GPT2LMHeadModel": "gpt:GPT2LMHeadModel",
    "GPTJForCausalLM": "gpt:GPTJForCausalLM",
    "GPTNeoXForCausalLM": "gpt:GPTNeoXForCausalLM",
    "GemmaForCausalLM": _LLAMA,
    "Gemma2ForCausalLM": "llama:Gemma2ForCausalLM",
    "Gemma3ForCausalLM": "llama:Gemma2ForCausalLM",
    "GlmForCausalLM": "llama:GlmForCausalLM",
    "Glm4ForCausalLM": "llama:GlmForCausalLM",
    "GraniteForCausalLM": _LLAMA,
    "LlamaForCausalLM": _LLAMA,
    "MinistralForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MptForCausalLM": "gpt:MptForCausalLM",
    "NemotronForCausalLM": _LLAMA,
    "OPTForCausalLM": "gpt:OPTForCausalLM",
    "OlmoForCausalLM": _LLAMA,
    "Olmo2ForCausalLM": "llama:Olmo2ForCausalLM",
    "Olmo3ForCausalLM": "llama:Olmo2ForCausalLM",
    "PhiForCausalLM": "gpt:PhiForCausalLM",
    "Phi3ForCausalLM": "llama:Phi3ForCausalLM",
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": _LLAMA,
    "SeedOssForCausalLM": _LLAMA,
    "SmolLM3ForCausalLM": _LLAMA,
    "StableLmForCausalLM": "llama:StableLmForCausalLM",
    "Starcoder2ForCausalLM": "llama:Starcoder2ForCausalLM",
}


def model_class(architecture: str) -> type[CausalLM]:
    """The class for an entry of `architectures` in config.json; `ConfigError` for one that is not in the table."""
    target = ARCHITECTURES.get(architecture)
    if target is None:
        raise ConfigError(
            f"Model architectures ['{architecture}'] are not supported for now. "
            f"Supported architectures: {', '.join(sorted(ARCHITECTURES))}",
            param="model",
        )
    module, name = target.split(":")
    found: type[CausalLM] = getattr(importlib.import_module(f"{_FAMILIES}.{module}"), name)
    return found
