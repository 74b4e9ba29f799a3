"""`Tokenizer.encode_cut` against transformers' fast tokenizers: WordPiece, byte-level BPE and Unigram, pairs and truncation."""

import random
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from minivllm.errors import ClientError
from minivllm.text.tokenizer import Tokenizer

TEXT = "the quick brown fox jumps over a lazy dog, grüße 你好 and 12 naïve cafés near Köln; réunion! running runs ran"
WORDS = TEXT.split()
CORPUS = [" ".join(random.Random(seed).choices(WORDS, k=12)) for seed in range(40)]


def build(kind: str) -> tokenizers.Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    if kind == "wordpiece":  # as BERT's
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special)
    elif kind == "bpe":  # as RoBERTa's
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    else:  # as XLM-R's
        backend = tokenizers.Tokenizer(models.Unigram())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="[UNK]")
    backend.train_from_iterator(CORPUS, trainer)
    ids = {token: backend.token_to_id(token) for token in special}
    if kind == "bpe":
        backend.post_processor = processors.RobertaProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    else:
        backend.post_processor = processors.TemplateProcessing(
            "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
        )
    return backend


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_equal_to_transformers(kind: str) -> None:
    backend = build(kind)
    ours = Tokenizer(tokenizers.Tokenizer.from_str(backend.to_str()), {"cls_token": "[CLS]", "sep_token": "[SEP]"}, {})
    rng = random.Random(2)
    for side in ("right", "left"):
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, truncation_side=side, pad_token="[PAD]")
        for _ in range(40):
            text, second = (" ".join(rng.choices(WORDS, k=rng.randrange(1, 20))) for _ in range(2))
            pair = second if rng.random() < 0.6 else None
            limit = rng.choice([None, 4, 7, 12, 30])
            cut = {} if limit is None else {"truncation": "longest_first", "max_length": limit}
            expected = theirs(text, pair, **cut)
            ids, start = ours.encode_cut(text, pair, limit=limit, side=side)
            types = [int(start is not None and index >= start) for index in range(len(ids))]
            assert (ids, types) == (
                expected["input_ids"],
                expected.get("token_type_ids", types),
            )
            plain = theirs(text, pair, add_special_tokens=False, **cut)["input_ids"]
            assert ours.encode_cut(text, pair, limit=limit, side=side, add_special_tokens=False)[0] == plain


def test_a_limit_below_the_special_tokens_holds() -> None:
    ours = Tokenizer(build("wordpiece"), {}, {})
    assert len(ours.encode_cut("the fox", limit=1)[0]) == 1


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ClientError, match="lone surrogate"):
        Tokenizer(build("wordpiece"), {}, {}).encode_cut("a", "\ud800", limit=5)
