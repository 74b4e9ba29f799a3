"""Joined increments equal the reference decoder's text, for every kind of tokenizer and any cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.messages.sampling_params import SamplingParams
from minivllm.text.detokenizer import Detokenizer

KINDS = ["byte_level", "llama", "gemma", "metaspace", "words"]


def pieces(tokenizer, ids, prompt=(), skip=True, cuts=None, **options):
    detokenizer = Detokenizer(tokenizer, list(prompt), SamplingParams(skip_special_tokens=skip, **options))
    found, start = [], 0
    for end in cuts or range(1, len(ids) + 1):
        found.append(detokenizer.feed(ids[start:end]))
        start = end
    return [*found, detokenizer.feed(ids[start:]), detokenizer.finish()]


def plain_token(tokenizer):
    """A token that ends any run of byte tokens."""
    return next(i for i in range(tokenizer.size) if tokenizer.piece(i) in ("a", b"a", "of", "▁of"))


@pytest.mark.parametrize("kind", ["byte_level", "llama", "gemma"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_ids_in_any_cut_equal_the_full_decode(tokenizer_of, kind, data):
    tokenizer = tokenizer_of(kind)
    token = st.integers(0, tokenizer.size - 1)
    ids = [*data.draw(st.lists(token, max_size=24)), plain_token(tokenizer)]
    skip = data.draw(st.booleans())
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids)))))
    assert "".join(pieces(tokenizer, ids, skip=skip, cuts=cuts)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_output_continues_the_prompt(tokenizer_of, kind, data):
    """With a prompt, the text is what the whole has more than the prompt alone: the leading blank stays."""
    tokenizer = tokenizer_of(kind)
    text = st.text("ab ofPä你🐢,1\n", min_size=1, max_size=12)
    prompt, ids = tokenizer.encode("The " + data.draw(text)), tokenizer.encode(data.draw(text) + "of")
    before, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + ids)
    assert before + "".join(pieces(tokenizer, ids, prompt, skip=False)) == whole


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=st.text("abc ofParis.é你好🐢🙂\n1", max_size=20))
def test_no_piece_has_half_a_character(tokenizer_of, kind, text):
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text)
    found = pieces(tokenizer, ids)
    assert not any("\ufffd" in piece for piece in found)
    assert "".join(found) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["byte_level", "llama", "gemma"])
def test_character_cut_by_the_end_is_left_out(tokenizer_of, kind):
    tokenizer = tokenizer_of(kind)
    turtle = [next(i for i in range(tokenizer.size) if tokenizer.piece(i) == bytes([b])) for b in "🐢".encode()]
    assert "".join(pieces(tokenizer, [plain_token(tokenizer), *turtle])).endswith("🐢")
    assert "\ufffd" not in "".join(pieces(tokenizer, [plain_token(tokenizer), *turtle[:3]]))
    assert "".join(pieces(tokenizer, [plain_token(tokenizer), *turtle, *turtle[:2]])).endswith("🐢")


@pytest.mark.parametrize("kind", ["byte_level", "gemma"])
def test_output_completes_a_character_that_the_prompt_began(tokenizer_of, kind):
    tokenizer = tokenizer_of(kind)
    turtle = [next(i for i in range(tokenizer.size) if tokenizer.piece(i) == bytes([b])) for b in "🐢".encode()]
    assert "".join(pieces(tokenizer, turtle[2:], [*turtle, *turtle[:2]])) == "🐢"
    assert "".join(pieces(tokenizer, [plain_token(tokenizer)], turtle)).strip() in ("a", "of")


def test_long_run_of_byte_tokens_streams(tokenizer_of):
    tokenizer = tokenizer_of("llama")
    byte = {tokenizer.piece(i): i for i in range(tokenizer.size)}
    ids = [byte[bytes([b])] for b in ("你好" * 20).encode()]
    found = pieces(tokenizer, ids)
    assert "".join(found) == "你好" * 20 and "".join(found[:60]) != ""


def test_first_blank_as_in_the_reference(tokenizer_of):
    """SentencePiece's decoder drops the blank before the first word, and only that one."""
    tokenizer = tokenizer_of("llama")
    ids = tokenizer.encode("Hello world")
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids) == "Hello world"
    bos = tokenizer.id_of("<s>")
    assert "".join(pieces(tokenizer, ids, [bos])) == "Hello world"
    assert "".join(pieces(tokenizer, ids, ids)) == " Hello world"


def test_blanks_between_added_tokens(tokenizer_of):
    tokenizer = tokenizer_of("words")
    ids = [tokenizer.id_of(t) for t in ("is", "<a>", "<b>", "of")]
    assert "".join(pieces(tokenizer, ids, skip=False)) == "is <a> <b> of"
    assert "".join(pieces(tokenizer, ids, skip=False, spaces_between_special_tokens=False)) == "is <a><b> of"
    assert "".join(pieces(tokenizer, ids, skip=True)) == "is of"


def test_real_tokenizer(smollm2):
    from minivllm.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(smollm2)
    text = "Grüße 🐢🐢, 你好!\n\tdef f(x): return x  # naïve “quotes” 🙂\u200d🙂"
    ids = [1, *tokenizer.encode(text), 2]
    assert "".join(pieces(tokenizer, ids)) == text
    assert "".join(pieces(tokenizer, ids, skip=False)) == f"<|im_start|>{text}<|im_end|>"


@pytest.mark.parametrize("kind", ["byte_level", "llama", "gemma"])
def test_special_tokens_may_be_shown_one_by_one(tokenizer_of, kind):
    tokenizer = tokenizer_of(kind)
    shown, hidden = sorted(tokenizer.special_ids)[:2]
    ids = [hidden, plain_token(tokenizer), shown, hidden, plain_token(tokenizer)]
    wanted = tokenizer.decode([index for index in ids if index != hidden])
    assert "".join(pieces(tokenizer, ids, prompt=[plain_token(tokenizer)], shown_special_ids=[shown])).strip() == wanted.strip()
