"""A model of transformers without weights, as config.json describes it; `ConfigError` with the reason if we cannot serve it."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from minivllm.config import model_files
from minivllm.config.sections.model import ModelConfig
from minivllm.errors import ConfigError, one_line
from minivllm.model.transformers.attention import NAME, NOT_BY_INTERFACE, Unsupported

transformers.utils.logging.set_verbosity_error()  # its hints are for those who write Python
_PATCHING = Lock()  # of classes, which a thread must not do while another does
_CAUSAL = ("ForCausalLM", "LMHeadModel")


def build(config: ModelConfig, architecture: str, dtype: torch.dtype) -> PreTrainedModel:
    """Parameters are on the meta device; tables that are no part of a checkpoint have their values."""
    try:
        hf_config = _config(config)
        with _PATCHING, no_init_weights(), _parameters_without_memory():
            model = AutoModelForCausalLM.from_config(
                hf_config, dtype=dtype, attn_implementation=NAME, trust_remote_code=config.trust_remote_code
            )
        _check(model, architecture)
    except Unsupported as reason:
        raise refusal(architecture, str(reason)) from None
    except Exception as e:  # whatever code that is not ours may raise
        if isinstance(e, KeyError) and e.args == (NAME,):
            raise refusal(architecture, NOT_BY_INTERFACE) from None
        said = one_line(e).rstrip(": .")
        raise refusal(architecture, f"transformers says {said}") from e
    return model.eval()


def refusal(architecture: str, reason: str) -> ConfigError:
    return ConfigError(f"Model architectures ['{architecture}'] are not supported for now: {reason}.", param="model")


def fix_rope_lengths(model: nn.Module, max_model_len: int) -> None:
    """Frequencies that depend on the length of the text are chosen once: cached keys cannot change when their text grows."""
    last = torch.tensor([[max_model_len - 1]])
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        by_layer_type = kinds if isinstance(kinds, dict) else {None: kinds}
        if not any(isinstance(kind, str) and ("dynamic" in kind or kind == "longrope") for kind in by_layer_type.values()):
            continue
        for layer_type in by_layer_type:
            module(torch.zeros(1), last, **({"layer_type": layer_type} if layer_type else {}))
        setattr(module, "rope_type", dict.fromkeys(kinds, "default") if isinstance(kinds, dict) else "default")  # noqa: B010


def _config(config: ModelConfig) -> PreTrainedConfig:
    folder = Path(config.path)
    found_values, _ = PreTrainedConfig.get_config_dict(folder)
    values = model_files.override(found_values, config.hf_overrides)
    values.pop("quantization_config", None)  # the loader's affair
    model_type = values.get("model_type", "")
    known = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type, ""), None)
    if known is not None and known._is_stateful and "layer_types" not in values:  # with them, config.hf.generic has looked
        raise Unsupported("it keeps a recurrent state in place of keys and values")
    comes_along = "AutoConfig" in values.get("auto_map", {}) and model_type not in CONFIG_MAPPING
    if comes_along and not config.trust_remote_code:
        raise Unsupported("its code comes with the model, and runs only with --trust-remote-code")
    found: type[PreTrainedConfig] = type(AutoConfig.from_pretrained(folder, trust_remote_code=config.trust_remote_code))
    made = found.from_dict(values)
    made._name_or_path = str(folder)  # where code that comes along is looked for
    return made


def _check(model: PreTrainedModel, architecture: str) -> None:
    name, config = type(model).__name__, model.config
    model_type = config.model_type.replace("_", "").replace("-", "")
    if name != architecture and not (architecture.endswith(_CAUSAL) and model_type in architecture.lower()):
        raise Unsupported(f"transformers makes a {name} of it")
    if getattr(config, "is_encoder_decoder", False):
        raise Unsupported("it is an encoder with a decoder")
    if config.get_text_config() is not config:
        raise Unsupported("it takes more than text")
    if "position_ids" not in inspect.signature(decoder_of(model)[1].forward).parameters:
        raise Unsupported("it cannot be told the positions of tokens")


def decoder_of(model: PreTrainedModel) -> tuple[str, nn.Module]:
    """The layers without the head, and where they are."""
    within = [child for child in model.children() if isinstance(child, PreTrainedModel)]
    base = model.base_model if model.base_model is not model or len(within) != 1 else within[0]
    decoder = model.get_decoder()
    for path, module in model.named_modules():
        if path and module is decoder and any(module is one for one in base.modules()):
            return path, module
    for path, module in model.named_modules():
        if path and module is base:
            return path, module
    raise Unsupported("its head is not apart from its layers")


@contextmanager
def _parameters_without_memory() -> Iterator[None]:
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: Any) -> None:
        if parameter is not None:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
