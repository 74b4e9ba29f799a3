"""Which family module builds which architecture; a new architecture that a family covers is one line here."""

import importlib

from minivllm.errors import ConfigError
from minivllm.model.interface import CausalLM

_LLAMA = "minivllm.model.families.llama:LlamaForCausalLM"

ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
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
    found: type[CausalLM] = getattr(importlib.import_module(module), name)
    return found
