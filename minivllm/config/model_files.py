"""The small JSON files of a model folder, and what they say about the end of a text. Used by `resolve`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from minivllm.config.model_spec import token_ids
from minivllm.errors import ConfigError

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    """The part of tokenizer.json that is read here; the megabytes beside it are skipped."""

    added_tokens: list[_AddedToken] = []


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} if there is no such file; `ConfigError` if it is something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror}.", param="model") from e
    except ValueError as e:
        raise ConfigError(f"{path} is not JSON: {e}.", param="model") from e
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object.", param="model")
    return content


def read_config(folder: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """config.json with --hf-overrides merged over it."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json: it is not the folder of a Hugging Face model.", param="model")
    return _merge(read_json(folder / "config.json"), overrides)


def check_weights(folder: Path) -> None:
    """Refuse a folder that has no weights that we read."""
    if any(folder.glob("*.safetensors")):
        return
    others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf"))
    found = f" ({others[0]} is there, but only safetensors are read)" if others else ""
    raise ConfigError(f"{folder} has no weights: no *.safetensors file{found}.", param="model")


def eos_token_ids(model: Path, tokenizer: Path, config: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that end a text: those of generation_config.json, else config.json's, and the tokenizer's own."""
    ids = token_ids(generation.get("eos_token_id")) or token_ids(config.get("eos_token_id"))
    token = read_json(tokenizer / "tokenizer_config.json").get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    path = tokenizer / "tokenizer.json"
    if isinstance(content, str) and path.is_file():
        try:
            added = msgspec.json.decode(path.read_bytes(), type=_AddedTokens).added_tokens
        except msgspec.DecodeError as e:
            raise ConfigError(f"{path} is not a tokenizer: {e}.", param="tokenizer") from e
        ids += tuple(t.id for t in added if t.content == content)
    return tuple(dict.fromkeys(ids))


def sampling_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    return {name: generation[name] for name in SAMPLING_DEFAULTS if generation.get(name) is not None}


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
