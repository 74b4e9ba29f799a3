"""From a model's files to a `PoolingConfig`: modules.json of sentence-transformers, else config.json. Used by `resolve`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minivllm.config import model_files
from minivllm.config.hf import encoders
from minivllm.config.model_spec import ModelSpec, architecture_of
from minivllm.config.sections.pooling import PoolingConfig
from minivllm.errors import ConfigError

# In the order in which sentence-transformers puts their results side by side.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {**{kind: kind for kind in _MODES.values()}, "lasttoken": "last"}
_TEXT_FILES = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
_OVERRIDES = ("pooling_type", "seq_pooling_type", "normalize", "use_activation")
_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "identity", "Softmax": "softmax"}


def choose_runner(runner: str, convert: str, architecture: str, folder: Path) -> str:
    """ "generate" or "pooling". ConfigError for what the model cannot do."""
    pools = architecture.endswith(("Model", "ForSequenceClassification")) and not architecture.endswith("LMHeadModel")
    generates = not pools and architecture not in encoders.FAMILIES
    if runner == "auto":
        pooling = not generates or convert in ("embed", "classify") or (folder / "modules.json").is_file()
        return "pooling" if pooling else "generate"
    if runner == "generate" and not generates:
        raise ConfigError(f"This model does not support `--runner generate`: {architecture} only pools.", param="runner")
    if runner == "generate" and convert in ("embed", "classify"):
        raise ConfigError(f"--convert {convert} makes a pooling model: it cannot go with --runner generate.", param="convert")
    if runner == "pooling" and generates and convert == "none":
        raise ConfigError("This model does not support `--runner pooling` with --convert none.", param="convert")
    return runner


def read_pooling(
    spec: ModelSpec, folder: Path, config: Mapping[str, Any], convert: str, overrides: Mapping[str, Any]
) -> PoolingConfig:
    """`config` is the model's config.json, `overrides` what --pooler-config says."""
    unknown = sorted(set(overrides) - set(_OVERRIDES))
    if unknown:
        raise ConfigError(f"--pooler-config has no {unknown[0]!r}; it has {', '.join(_OVERRIDES)}.", param="pooler_config")
    asked = overrides.get("pooling_type") or overrides.get("seq_pooling_type")
    types = (_kind(asked),) if asked else None
    is_classifier = architecture_of(config).endswith("ForSequenceClassification")
    if convert == "classify" or (is_classifier and convert != "embed"):
        return _classifier(spec, config, types)
    found = _sentence_transformers(folder)
    default = "cls" if spec.encoder is not None else "last"
    dimensions = config.get("matryoshka_dimensions")
    types = types or found.get("types") or (default,)
    normalize = overrides.get("use_activation", overrides.get("normalize", found.get("normalize", True)))
    return PoolingConfig(
        task="embed",
        types=types,
        width=found.get("width") or spec.hidden_size * len(types),
        normalize=bool(normalize),
        dense=found.get("dense", ()),
        is_matryoshka=bool(dimensions or config.get("is_matryoshka")),
        matryoshka_dimensions=tuple(dimensions or ()),
        lower_case=bool(_text_file(folder).get("do_lower_case")),
    )


def max_length(folder: Path) -> int | None:
    """Longest text by sentence-transformers' file, in tokens."""
    found = _text_file(folder).get("max_seq_length")
    return found if isinstance(found, int) and found > 0 else None


def _text_file(folder: Path) -> dict[str, Any]:
    return next((content for name in _TEXT_FILES if (content := model_files.read_json(folder / name))), {})


def _kind(name: object) -> str:
    kind = _NAMES.get(str(name).lower())
    if kind is None:
        raise ConfigError(f"pooling type {name!r} is not supported (supported: {', '.join(_NAMES)}).", param="pooler_config")
    return kind


def _sentence_transformers(folder: Path) -> dict[str, Any]:
    """Types, dense layers and normalisation from modules.json; empty without one."""
    path = folder / "modules.json"
    if not path.is_file():
        return {}
    dense: list[str] = []
    types: tuple[str, ...] = ()
    normalize, width = False, None
    for module in model_files.read_objects(path):
        kind, place = str(module.get("type", "")).rpartition(".")[2], folder / str(module.get("path", ""))
        if kind == "Pooling":
            types = _pooling_types(model_files.read_json(place / "config.json"))
        elif kind == "Dense":
            dense.append(str(place))
            width = model_files.read_json(place / "config.json").get("out_features")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise ConfigError(f"{path} has a module of type {kind!r}, which is not supported.", param="model")
    return {"types": types, "normalize": normalize, "dense": tuple(dense), "width": width}


def _pooling_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    mode = config.get("pooling_mode")  # the form of newer versions
    if mode:
        return tuple(_kind(each) for each in (mode if isinstance(mode, list) else [mode]))
    return tuple(kind for name, kind in _MODES.items() if config.get(name))


def _classifier(spec: ModelSpec, config: Mapping[str, Any], types: tuple[str, ...] | None) -> PoolingConfig:
    default = spec.encoder.classifier_pooling if spec.encoder is not None else "last"
    names = config.get("id2label") or {}
    count = int(config.get("num_labels") or len(names) or 2)
    labels = tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(count))
    sentence = config.get("sentence_transformers") or {}
    named = str(sentence.get("activation_fn") or config.get("sbert_ce_default_activation_function") or "").rpartition(".")[2]
    by_problem = {"regression": "identity", "multi_label_classification": "sigmoid"}
    usual = by_problem.get(str(config.get("problem_type")), "sigmoid" if count == 1 else "softmax")
    if named and named not in _ACTIVATIONS:
        raise ConfigError(f"the activation {named} of config.json is not supported.", param="model")
    return PoolingConfig(
        task="classify",
        types=types or (default,),
        width=count,
        labels=labels,
        activation=_ACTIVATIONS.get(named, usual),
    )
