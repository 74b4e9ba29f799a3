"""The JSON files of a model folder: what they say about the end of a text and the number of tokens. Used by `resolve`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from minivllm.config import sharded_state
from minivllm.errors import ConfigError

SAFETENSORS_INDEX = "model.safetensors.index.json"
PT_INDEX = "pytorch_model.bin.index.json"
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")

_ROPE = ("rope_parameters", "rope_scaling", "rope_theta")


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerModel(msgspec.Struct, frozen=True):
    vocab: msgspec.Raw = msgspec.Raw()  # {token: id}, or [[token, score], ...] of a unigram model


class TokenizerFile(msgspec.Struct):
    """The parts of tokenizer.json that are read here; the megabytes beside them are skipped."""

    added_tokens: list[_AddedToken] = []
    model: _TokenizerModel = _TokenizerModel()

    def num_tokens(self, vocab_size: int) -> int | None:
        """The least number above all ids, `vocab_size` if it is no less than that, None if it is not known."""
        vocab = bytes(self.model.vocab)
        # Ids stand in order, so that the last one mostly shows at once that the vocabulary is not padded.
        last_id = vocab[vocab.rfind(b":") + 1 : -1].strip()
        added = max((token.id for token in self.added_tokens), default=-1)
        if (last_id.isdigit() and int(last_id) + 1 >= vocab_size) or added + 1 >= vocab_size:
            return vocab_size
        try:
            if vocab.startswith(b"["):
                largest = len(msgspec.json.decode(vocab, type=list[msgspec.Raw])) - 1
            else:
                largest = max(msgspec.json.decode(vocab, type=dict[str, int]).values())
        except ValueError:  # no vocabulary, an empty one, or one of a form that we do not know
            return None
        return max(largest, added) + 1

    def eos_token_ids(self, folder: Path) -> tuple[int, ...]:
        """The tokenizer's own token that ends a text, which tokenizer_config.json in the same folder names."""
        token = read_json(folder / "tokenizer_config.json").get("eos_token")
        content = token.get("content") if isinstance(token, dict) else token
        return tuple(t.id for t in self.added_tokens if t.content == content)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} if there is no such file; `ConfigError` if it is something else."""
    content = _parse(path, {})
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object.", param="model")
    return content


def read_objects(path: Path) -> list[dict[str, Any]]:
    """Likewise a list of objects."""
    content = _parse(path, [])
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise ConfigError(f"{path} must hold a list of JSON objects.", param="model")
    return content


def _parse(path: Path, absent: object) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):  # the latter: a model that is one file
        return absent
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror}.", param="model") from e
    except ValueError as e:
        raise ConfigError(f"{path} is not JSON: {e}.", param="model") from e


def read_config(folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json: it is not the folder of a Hugging Face model.", param="model")
    return read_json(folder / "config.json")


def read_generation(folder: Path) -> dict[str, Any]:
    return read_json(folder / "generation_config.json")


def weights_format(folder: Path, load_format: str) -> str:
    """The --load-format that reads the weights in a folder: the one asked for, or that of the files that are there."""
    has_safetensors = any(folder.glob("*.safetensors")) or (folder / SAFETENSORS_INDEX).is_file()
    if load_format in ("auto", "sharded_state") and sharded_state.is_sharded(folder):
        return "sharded_state"
    if load_format not in ("pt", "sharded_state") and has_safetensors:
        return "safetensors"
    if load_format not in ("safetensors", "sharded_state") and pt_files(folder):
        return "pt"
    named = {"safetensors": "*.safetensors", "pt": "*.bin or *.pt", "sharded_state": sharded_state.ANY}
    wanted = named.get(load_format, "*.safetensors, *.bin or *.gguf")
    there = sorted(p.name for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".pt", ".pth", ".gguf"))
    found = f" (only {there[0]})" if there else ""
    if len(there) > 1 and there[0].endswith(".gguf"):
        found = " (it has several *.gguf files: give the path of one)"
    raise ConfigError(f"{folder} has no weights: no {wanted} file{found}.", param="model")


def pt_files(folder: Path) -> list[Path]:
    """Those with weights, and not what training leaves beside them."""
    names = ("pytorch_model*.bin", "model*.bin", "*.pt")
    return next((found for found in (sorted(folder.glob(name)) for name in names) if found), [])


def read_tokenizer(folder: Path) -> TokenizerFile:
    """tokenizer.json of a tokenizer's folder; an empty one if there is none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return TokenizerFile()
    try:
        return msgspec.json.decode(path.read_bytes(), type=TokenizerFile)
    except msgspec.DecodeError as e:
        raise ConfigError(f"{path} is not a tokenizer: {e}.", param="tokenizer") from e


def sampling_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    return {name: generation[name] for name in SAMPLING_DEFAULTS if generation.get(name) is not None}


def override(config: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`merge` of a config.json, whichever of their names rope parameters have in either."""
    if not any(name in over for name in _ROPE):
        return merge(config, over)
    config, over = _with_rope_parameters(config), _with_rope_parameters(over)
    whole = "full_attention"  # what those parameters were of that did not say
    if whole in config["rope_parameters"] and not any(isinstance(each, dict) for each in over["rope_parameters"].values()):
        over["rope_parameters"] = {whole: over["rope_parameters"]}
    return merge(config, over)


def _with_rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """As transformers 5 writes it; before, rope_theta stood by itself, and `type` or `rope_type` in rope_scaling."""
    parameters, scaling, theta = (config.get(name) or {} for name in _ROPE)
    rope = {"rope_type" if name == "type" else name: value for name, value in {**parameters, **scaling}.items()}
    rope = {"rope_theta": theta, **rope} if theta else rope
    return {**{name: value for name, value in config.items() if name not in _ROPE}, "rope_parameters": rope}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins, object by object."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
