"""Tokenizers out of GGUF metadata: pieces, control tokens and templates, against a tokenizer made by hand and the real one."""

from pathlib import Path

import pytest
from gguf_files import model_metadata, write_model

from minivllm.errors import ConfigError
from minivllm.text.tokenizer import load_tokenizer

PUBLIC = Path(__file__).parent.parent / "model/quantization/public_domain.txt"


def tokens_of(path: Path, text: str) -> list[str]:
    tokenizer = load_tokenizer(path)
    return [tokenizer.backend.id_to_token(i) for i in tokenizer.encode(text)]


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_tokenizer(path)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_model(tmp_path / "m.gguf"))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.special_ids) == (0, 1, frozenset({0, 1}))
    assert tokenizer.template_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.chat_template == model_metadata()["tokenizer.chat_template"]
    assert tokenizer.size == 266  # without the padding
    ids = tokenizer.encode("<s>hello wé<mark>")
    assert [tokenizer.backend.id_to_token(i) for i in ids] == ["<s>", "hello", "Ġw", "Ã", "©", "<mark>"]
    assert tokenizer.decode(ids) == "<s>hello wé<mark>" and tokenizer.decode(ids, skip_special_tokens=True) == "hello wé<mark>"
    assert tokenizer.byte_decoder == "bytes" and tokenizer.token_bytes(ids[3]) == b"\xc3"


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("gpt-2", "a  12", ["a", "Ġ", "Ġ", "12"]),  # the second blank belongs to the number
        ("smollm", "a  12", ["a", "ĠĠ", "1", "2"]),
        ("qwen2", "a  12", ["a", "Ġ", "Ġ", "1", "2"]),
        ("qwen2", "e\u0301", ["Ã", "©"]),  # normalized to one character
        ("llama-bpe", "a  12", ["<s>", "a", "Ġ", "Ġ", "12"]),
        ("tekken", "a1212", ["<s>", "a", "1", "2", "1", "2"]),
    ],
)
def test_pieces(tmp_path: Path, pre: str, text: str, tokens: list[str]) -> None:
    assert tokens_of(write_model(tmp_path / "m.gguf", pre=pre), text) == tokens


def test_the_ends_of_a_text(tmp_path: Path) -> None:
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    assert tokens_of(write_model(tmp_path / "m.gguf", **flags), "hello") == ["<s>", "hello", "</s>"]
    off = {"tokenizer.ggml.add_bos_token": False}
    assert tokens_of(write_model(tmp_path / "m.gguf", pre="llama-bpe", **off), "hello") == ["hello"]


def test_named_templates(tmp_path: Path) -> None:
    more = {"tokenizer.chat_templates": ["tools"], "tokenizer.chat_template.tools": "{{ tools }}"}
    tokenizer = load_tokenizer(write_model(tmp_path / "m.gguf", **more))
    assert tokenizer.chat_templates["tools"] == "{{ tools }}" and "default" in tokenizer.chat_templates


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokenizer.ggml.pre": "jais"}, "pre-tokenizer 'jais' is not supported (supported: gpt-2, smollm, llama-bpe,"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer model 'bert' is not supported"),
        ({"tokenizer.ggml.eos_token_id": 400}, "its eos token 400 is not one of its 268 tokens"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "it has 268 tokens and 2 token types"),
        ({"tokenizer.ggml.merges": ["q qq"]}, "its tokens and merges do not fit together"),
        ({"tokenizer.ggml.merges": ["one"]}, "its tokens and merges do not fit together"),
    ],
)
def test_refusals(tmp_path: Path, change: dict, said: str) -> None:
    assert said in refusal(write_model(tmp_path / "m.gguf", **change))


def test_the_real_one(smollm2: Path) -> None:
    path = smollm2.with_suffix(".gguf")
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    ours, folder = load_tokenizer(path), load_tokenizer(smollm2)
    texts = ["Hello, world! It's 1 of 23.", "<|im_start|>user\nhi<|im_end|>", "  def f(x):\n\treturn x\n\n", "你好 ñandú 🙂"]
    for text in texts:
        assert ours.encode(text) == folder.encode(text)
    assert (ours.size, ours.special_ids, ours.template_tokens) == (folder.size, folder.special_ids, folder.template_tokens)
    assert ours.chat_template == folder.chat_template


def test_a_real_one_of_sentencepiece(real_model) -> None:
    folder = real_model("gemma270")
    path = folder.with_suffix(".gguf")
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    ours, theirs = load_tokenizer(path), load_tokenizer(folder)
    texts = ["Hello, world! It's 1 of 23.", "<start_of_turn>user\n hi<end_of_turn>", "    def f(x):\n\n\n\treturn  x\n\n",
             "你好 ñandú 🙂\u200d", " ", "", "a" * 40, PUBLIC.read_text(encoding="utf-8"), "\x00\x7f <unused7>"]  # fmt: skip
    for text in texts:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids and ours.decode(ids) == theirs.decode(ids)
    assert (ours.size, ours.special_ids, ours.bos_token_id) == (theirs.size, theirs.special_ids, theirs.bos_token_id)
    assert (ours.byte_decoder, ours.num_stripped) == ("fallback", 0)


def test_sentencepiece(tmp_path: Path) -> None:
    """Merges in the order of the scores, bytes for what is no piece, and the blank before a text."""
    scored = {
        "▁": -9.0,
        "h": -8.0,
        "e": -8.5,
        "l": -8.7,
        "o": -8.9,
        "▁h": -1.0,
        "el": -2.0,
        "lo": -1.5,
        "▁hel": -3.0,
        "▁he": -4.0,
    }
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *scored, "<mark>"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [float(score) for score in scored.values()] + [0.0],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(scored), 4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    path = write_model(tmp_path / "m.gguf", **metadata)
    assert tokens_of(path, "hello") == ["<s>", "▁hel", "lo"]
    assert tokens_of(path, "he  é<mark>o") == ["<s>", "▁he", "▁", "▁", "<0xC3>", "<0xA9>", "<mark>", "▁", "o"]
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode(" hé", add_special_tokens=False)
    assert tokenizer.decode(ids) == " hé" and (tokenizer.byte_decoder, tokenizer.num_stripped) == ("fallback", 1)
    none = write_model(path, **metadata, **{"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})
    assert tokens_of(none, "hello") == ["h", "el", "lo"]
    assert "it has 270 tokens and 2 scores" in refusal(write_model(path, **metadata | {"tokenizer.ggml.scores": [0.0, 1.0]}))
