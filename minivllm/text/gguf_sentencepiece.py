"""The SentencePiece tokenizer that the metadata of a GGUF file describe: pieces with scores. Used by `gguf_tokenizer`."""

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, normalizers

_BLANK = "\u2581"
_NORMAL, _UNKNOWN, _USER_DEFINED, _UNUSED = 1, 2, 4, 5


def backend_of(tokens: list[str], types: Sequence[int], scores: Sequence[float], space_prefix: bool) -> tokenizers.Tokenizer:
    """Byte-pair encoding whose merges have the order of the scores. `space_prefix`: a text begins with a blank.

    The library's exceptions come through if tokens and merges do not fit together.
    """
    vocabulary = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    if unknown is None:
        unknown = "<unk>" if "<unk>" in vocabulary else None
    merges = _merges(tokens, types, scores, vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(_BLANK)] if space_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _BLANK)])
    undone: list[decoders.Decoder] = [decoders.Strip(" ", 1, 0)] if space_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *undone]
    )  # fmt: skip
    return backend


def is_found_as_it_is(token: str) -> bool:
    """Whether an added token is looked for in the text itself. Runs of blanks are not: the text has no such characters."""
    return _BLANK not in token


def _merges(
    tokens: list[str], types: Sequence[int], scores: Sequence[float], vocabulary: dict[str, int]
) -> list[tuple[str, str]]:
    """Every way to put a piece together of two: the best pieces first, those that the model's makers defined before all."""
    whole = [i for i, kind in enumerate(types) if kind in (_NORMAL, _USER_DEFINED) and len(tokens[i]) > 1]
    whole.sort(key=lambda i: (types[i] != _USER_DEFINED, -scores[i] if types[i] == _NORMAL else 0.0))
    found = []
    for token in map(tokens.__getitem__, whole):
        for cut in range(len(token) - 1, 0, -1):
            if token[:cut] in vocabulary and token[cut:] in vocabulary:
                found.append((token[:cut], token[cut:]))
    return found
