"""Small tokenizers of each kind, built here: byte-level BPE, SentencePiece style with byte fallback, and others."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from minivllm.text.tokenizer import Tokenizer

CORPUS = [
    "Hello world, the capital of France is Paris.",
    "The quick brown fox jumps over the lazy dog; 1, 2, 3, 4, 5.",
    "Grüße aus Köln: naïve café, 你好世界, Привет мир, 🐢🐢 and 🙂.",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
] * 4


def build_byte_level() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|end|>", "<|start|>"]
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=special))
    backend.add_tokens(["<tool>", "｜mark｜ "])  # added, not special; with characters outside the byte alphabet
    return backend


def build_sentencepiece(strip: bool) -> tokenizers.Tokenizer:
    """Like Llama 2 (`strip`: its decoder takes one blank off the start) or Gemma."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    ascii_corpus = [text.encode("ascii", "ignore").decode() for text in CORPUS]
    special = ["<unk>", "<s>", "</s>"]
    backend.train_from_iterator(ascii_corpus, trainers.BpeTrainer(vocab_size=160, special_tokens=special))
    state = json.loads(backend.to_str())
    vocab = state["model"]["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    state["model"] |= {"byte_fallback": True, "fuse_unk": True}
    state["pre_tokenizer"] = None
    backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    return backend


def build_metaspace() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "</s>"]))
    return backend


def build_words() -> tokenizers.Tokenizer:
    """No decoder at all: tokens are joined by blanks."""
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(CORPUS, trainers.WordLevelTrainer(special_tokens=["<unk>", "<a>", "<b>"]))
    return backend


BUILDERS = {
    "byte_level": build_byte_level,
    "llama": lambda: build_sentencepiece(strip=True),
    "gemma": lambda: build_sentencepiece(strip=False),
    "metaspace": build_metaspace,
    "words": build_words,
}


@pytest.fixture(scope="session")
def tokenizer_of():
    """Tokenizer by kind: byte_level, llama, gemma, metaspace, words."""
    made: dict[str, Tokenizer] = {}

    def get(kind: str) -> Tokenizer:
        if kind not in made:
            made[kind] = Tokenizer(BUILDERS[kind](), {}, {})
        return made[kind]

    return get
