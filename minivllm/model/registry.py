"""Which family module builds which architecture; a new architecture that a family covers is one line here."""

import importlib
import re

import torch

from minivllm.config.engine_config import EngineConfig
from minivllm.config.sections.model import TRANSFORMERS
from minivllm.errors import ConfigError
from minivllm.kernels import Ops
from minivllm.model.interface import Model

_FAMILIES = "minivllm.model.families"
_TRANSFORMERS = "minivllm.model.transformers.causal_lm"  # imports transformers, which takes seconds
_LLAMA = "llama:LlamaForCausalLM"
_MIXTURE = "mixtures:MixtureForCausalLM"

ARCHITECTURES: dict[str, str] = {
    "BloomForCausalLM": "gpt:BloomForCausalLM",
    "CohereForCausalLM": "llama:CohereForCausalLM",
    "Cohere2ForCausalLM": "llama:CohereForCausalLM",
    "DeepseekV2ForCausalLM": _MIXTURE,
    "DeepseekV3ForCausalLM": _MIXTURE,
    "Ernie4_5ForCausalLM": _LLAMA,
    "Ernie4_5_MoeForCausalLM": "mixtures:ErnieMoeForCausalLM",
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
    "Glm4MoeForCausalLM": _MIXTURE,
    "GptOssForCausalLM": "mixtures:GptOssForCausalLM",
    "GraniteForCausalLM": _LLAMA,
    "GraniteMoeForCausalLM": "mixtures:GraniteMoeForCausalLM",
    "LlamaForCausalLM": _LLAMA,
    "MinistralForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": "mixtures:MixtralForCausalLM",
    "MptForCausalLM": "gpt:MptForCausalLM",
    "NemotronForCausalLM": _LLAMA,
    "OPTForCausalLM": "gpt:OPTForCausalLM",
    "OlmoForCausalLM": _LLAMA,
    "Olmo2ForCausalLM": "llama:Olmo2ForCausalLM",
    "Olmo3ForCausalLM": "llama:Olmo2ForCausalLM",
    "OlmoeForCausalLM": _MIXTURE,
    "PhiForCausalLM": "gpt:PhiForCausalLM",
    "Phi3ForCausalLM": "llama:Phi3ForCausalLM",
    "PhiMoEForCausalLM": "mixtures:MixtralForCausalLM",
    "PhimoeForCausalLM": "mixtures:MixtralForCausalLM",
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen2MoeForCausalLM": "mixtures:Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM": _LLAMA,
    "Qwen3MoeForCausalLM": _MIXTURE,
    "SeedOssForCausalLM": _LLAMA,
    "SmolLM3ForCausalLM": _LLAMA,
    "StableLmForCausalLM": "llama:StableLmForCausalLM",
    "Starcoder2ForCausalLM": "llama:Starcoder2ForCausalLM",
}

# Encoders, by the first part of their architecture's name: what follows says which head the checkpoint has.
ENCODERS = {
    "Bert": "bert:BertEncoder",
    "Roberta": "bert:RobertaEncoder",
    "XLMRoberta": "bert:RobertaEncoder",
    "Camembert": "bert:RobertaEncoder",
    "ModernBert": "modernbert:ModernBertEncoder",
}
_ENCODER_USES = re.compile("(Model|ForMaskedLM|ForSequenceClassification)$")


def make_model(config: EngineConfig, ops: Ops, dtype: torch.dtype, device: str) -> Model:
    """The model that the configuration names, without weights."""
    spec, length = config.spec, config.model.max_model_len
    if config.model.model_impl == TRANSFORMERS:
        made: Model = importlib.import_module(_TRANSFORMERS).TransformersForCausalLM(
            spec, ops, dtype, device, length, config.model
        )
        return made
    return model_class(spec.architecture)(spec, ops, dtype, device, length)


def model_class(architecture: str) -> type[Model]:
    """The class for an entry of `architectures` in config.json; `ConfigError` for one that is not in the table."""
    target = ARCHITECTURES.get(architecture) or ENCODERS.get(_ENCODER_USES.sub("", architecture))
    if target is None:
        raise ConfigError(
            f"Model architectures ['{architecture}'] are not supported for now. "
            f"Supported architectures: {', '.join(sorted([*ARCHITECTURES, *(f'{family}Model' for family in ENCODERS)]))}",
            param="model",
        )
    module, name = target.split(":")
    found: type[Model] = getattr(importlib.import_module(f"{_FAMILIES}.{module}"), name)
    return found
