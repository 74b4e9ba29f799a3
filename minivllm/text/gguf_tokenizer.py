"""Builds the tokenizer that the metadata of a GGUF file describe: byte-level BPE, split as its `tokenizer.ggml.pre` says, or
SentencePiece."""

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from minivllm.errors import ConfigError
from minivllm.text import gguf_sentencepiece
from minivllm.utils.gguf import GGUFFile

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LLAMA3 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_REST}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tokenizer.ggml.pre -> pattern of the pieces of a text; None: GPT-2's, "digits": the same with every digit by itself
_PATTERNS: dict[str, str | None] = {
    "gpt-2": None,
    "smollm": "digits",
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
_WHOLE_WORDS = (_LLAMA3, _TEKKEN)  # a piece that is a token is taken as it is, whatever the merges say
_BEGINS_WITH_BOS = (_LLAMA3, _TEKKEN)  # unless the file says otherwise
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding", "sep_token": "seperator"}


def build(file: GGUFFile) -> tuple[tokenizers.Tokenizer, dict[str, Any], dict[str, str]]:
    """The tokenizer, its named tokens as in tokenizer_config.json, and the chat templates by name."""
    model, pre = file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre")
    if model not in ("gpt2", "llama"):
        supported = "gpt2, which is byte-level BPE, and llama, which is SentencePiece"
        raise _refusal(file, f"tokenizer model {model!r} is not supported (supported: {supported})")
    if model == "gpt2" and pre not in _PATTERNS:
        raise _refusal(file, f"pre-tokenizer {pre!r} is not supported (supported: {', '.join(_PATTERNS)})")
    tokens = list(file.texts("tokenizer.ggml.tokens"))
    types = file.integers("tokenizer.ggml.token_type")
    if len(types) != len(tokens):
        raise file.broken(f"it has {len(tokens)} tokens and {len(types)} token types")
    named = {name: text for name, key in _NAMED.items() if (text := _token(file, tokens, key)) is not None}
    try:
        if model == "gpt2":
            backend = _byte_level(file, tokens, types, _PATTERNS[str(pre)])
        else:
            backend = _sentencepiece(file, tokens, types)
    except ConfigError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise _refusal(file, f"its tokens and merges do not fit together: {error}") from error
    added = [(t, kind) for t, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
    if model == "llama":
        added = [(token, kind) for token, kind in added if gguf_sentencepiece.is_found_as_it_is(token)]
    backend.add_tokens([tokenizers.AddedToken(t, special=kind == _CONTROL, normalized=False) for t, kind in added])
    _add_ends(file, backend, named, model == "llama" or _PATTERNS[str(pre)] in _BEGINS_WITH_BOS)
    return backend, named, _templates(file)


def _sentencepiece(file: GGUFFile, tokens: list[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    scores = file.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise file.broken(f"it has {len(tokens)} tokens and {len(scores)} scores")
    space_prefix = file.flag("tokenizer.ggml.add_space_prefix") is not False
    return gguf_sentencepiece.backend_of(tokens, types, scores, space_prefix)


def _byte_level(file: GGUFFile, tokens: list[str], types: Sequence[int], pattern: str | None) -> tokenizers.Tokenizer:
    parts = (merge.partition(" ") for merge in file.texts("tokenizer.ggml.merges"))
    merges = [(left, right) for left, _, right in parts]
    vocabulary = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pattern in _WHOLE_WORDS))
    if pattern is None:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pattern == "digits":
        split: pre_tokenizers.PreTokenizer = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    if pattern == _QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_ends(file: GGUFFile, backend: tokenizers.Tokenizer, named: dict[str, str], begins: bool) -> None:
    """The tokens that are put around every text."""
    add_bos, add_eos = file.flag("tokenizer.ggml.add_bos_token"), file.flag("tokenizer.ggml.add_eos_token")
    bos = named.get("bos_token") if (begins if add_bos is None else add_bos) else None
    eos = named.get("eos_token") if add_eos else None
    around = [text for text in (bos, eos) if text is not None]
    if around:
        single = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
        special = [(text, backend.token_to_id(text)) for text in dict.fromkeys(around)]
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)


def _token(file: GGUFFile, tokens: list[str], key: str) -> str | None:
    index = file.integer(f"tokenizer.ggml.{key}_token_id")
    if index is None:
        return None
    if not 0 <= index < len(tokens):
        raise file.broken(f"its {key} token {index} is not one of its {len(tokens)} tokens")
    return tokens[index]


def _templates(file: GGUFFile) -> dict[str, str]:
    main = "tokenizer.chat_template"
    names = {name: f"{main}.{name}" for name in file.texts("tokenizer.chat_templates")}
    return {name: text for name, key in {"default": main, **names}.items() if (text := file.text(key)) is not None}


def _refusal(file: GGUFFile, why: str) -> ConfigError:
    return ConfigError(f"{file.path}: {why}. Give another tokenizer by --tokenizer FOLDER.", param="tokenizer")
