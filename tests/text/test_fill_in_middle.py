"""Prompts with a gap: the tokens between the texts, the texts as the tokenizer would have them alone."""

import pytest
import tokenizers

from minivllm.text.fill_in_middle import SPELLINGS, FillInMiddle, fill_in_middle
from minivllm.text.tokenizer import Tokenizer

BEFORE, AFTER = "def fibonacci(n):\n    return ", "\n  # Grüße\n"


def with_tokens(kind: Tokenizer, *names: str, **config: str) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(kind.to_json())
    backend.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])
    return Tokenizer(backend, config, {})


def filler(tokenizer: Tokenizer) -> FillInMiddle:
    filling = fill_in_middle(tokenizer)
    assert filling is not None
    return filling


@pytest.mark.parametrize("spelling", [each for each in SPELLINGS if "▁<" not in each.prefix], ids=lambda each: each.prefix)
def test_byte_level(tokenizer_of, spelling):
    names = [spelling.prefix, spelling.suffix, spelling.middle]
    tokenizer = with_tokens(tokenizer_of("byte_level"), *names, *spelling.ends, "<|im_end|>")
    filling = filler(tokenizer)
    ids = filling.encode(BEFORE, AFTER, start="fib")
    assert ids == tokenizer.encode(f"{names[0]}{BEFORE}{names[1]}{AFTER}{names[2]}fib")
    assert filling.encode(tokenizer.encode(BEFORE), AFTER) == filling.encode(BEFORE, AFTER)
    stops = {tokenizer.token_text(index) for index in filling.stop_token_ids}
    assert stops == {*names, *spelling.ends}
    assert filling.encode("", "x") == tokenizer.encode(f"{names[0]}{names[1]}x{names[2]}")


def test_files_before_the_gap(tokenizer_of):
    qwen = SPELLINGS[0]
    names = (qwen.prefix, qwen.suffix, qwen.middle)
    whole = with_tokens(tokenizer_of("byte_level"), *names, qwen.repository, qwen.file)
    files = [("a.py", "x = 1\n"), ("b.py", "y = 2\n")]
    assert filler(whole).encode("p", "s", files=files) == whole.encode(
        "<|repo_name|>project\n<|file_sep|>a.py\nx = 1\n\n<|file_sep|>b.py\ny = 2\n\n<|file_sep|>current\n"
        "<|fim_prefix|>p<|fim_suffix|>s<|fim_middle|>"
    )
    plain = with_tokens(tokenizer_of("byte_level"), *names)
    text = plain.decode(filler(plain).encode("p", "s", files=files))
    assert text == "\n\n--- a.py ---\n\nx = 1\n\n\n--- b.py ---\n\ny = 2\n\n<|fim_prefix|>p<|fim_suffix|>s<|fim_middle|>"


def test_code_llama(tokenizer_of):
    """As Meta's own code has it: a blank before the first text only."""
    tokenizer = with_tokens(tokenizer_of("llama"), "▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>", bos_token="<s>")
    filling = filler(tokenizer)
    pieces = [tokenizer.token_text(index) for index in filling.encode("return ", "n + 1")]
    before, after, middle = (pieces.index(tokenizer.token_text(tokenizer.id_of(n))) for n in ("▁<PRE>", "▁<SUF>", "▁<MID>"))
    assert "".join(pieces[before + 1 : after]) == " return " and "".join(pieces[after + 1 : middle]) == "n + 1"
    assert before == 0 and middle == len(pieces) - 1  # this tokenizer puts no <s> before a text
    assert tokenizer.id_of("▁<EOT>") in filling.stop_token_ids


def test_models_without_the_tokens(tokenizer_of):
    assert fill_in_middle(tokenizer_of("byte_level")) is None and fill_in_middle(tokenizer_of("llama")) is None
