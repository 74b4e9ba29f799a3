"""Loading a folder, ids and pieces, against transformers."""

import json

import pytest
import tokenizers

from minivllm.errors import ClientError, ConfigError
from minivllm.messages.step import TokenLogprobs
from minivllm.text.logprobs import to_logprobs
from minivllm.text.tokenizer import load_tokenizer

TEXTS = [
    "The capital of France is",
    "3333+777",
    "  two  blanks\n\n\ttab\r\n",
    "zwölf🐢 café 你好世界 Привет",
    "<|im_start|>system\nYou are terse.<|im_end|>\n",
    "a\u200bb \u00a0 ﬁ ①",
    "",
    "def f(x):\n    return {'k': [1, 2.5e-3]}  # comment",
]


@pytest.fixture(scope="module")
def ours(smollm2):
    return load_tokenizer(smollm2)


@pytest.fixture(scope="module")
def theirs(smollm2):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(smollm2))


def save(backend, folder, **config):
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_transformers(ours, theirs, text):
    assert ours.encode(text) == theirs.encode(text)
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == theirs.encode(text, add_special_tokens=False)
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_facts_equal_transformers(ours, theirs):
    assert ours.size == len(theirs) == 49152
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id) == (1, 2)
    assert ours.template_tokens == theirs.special_tokens_map
    assert ours.special_ids >= set(theirs.all_special_ids)
    assert ours.chat_template == theirs.chat_template


def test_long_text_takes_the_other_entry(ours):
    text = "Bread is baked in the morning. 🐢 " * 400
    assert ours.encode(text) == ours.backend.encode(text).ids


@pytest.mark.parametrize("text", ["\ud83d", "a" * 5000 + "\udc00"])
def test_lone_surrogate_is_refused(ours, text):
    with pytest.raises(ClientError, match="lone surrogate"):
        ours.encode(text)


def test_decode_of_wild_ids(ours):
    assert ours.decode([10**6]) == ""
    with pytest.raises(ClientError):
        ours.decode([-1])


def test_pieces_of_byte_level_tokens(ours):
    assert ours.token_text(7042) == " Paris"
    ids = ours.encode("🐢")
    assert len(ids) > 1
    assert b"".join(ours.token_bytes(i) for i in ids) == "🐢".encode()
    assert ours.token_text(ids[0]) == "\ufffd" or ours.token_text(ids[0]).startswith(" ")
    assert ours.token_bytes(1) == b"<|im_start|>"
    assert ours.token_bytes(10**7) == b""
    for index in range(0, ours.size, 97):
        assert ours.token_text(index) == ours.decode([index])


def test_pieces_of_fallback_tokens(tokenizer_of):
    tokenizer = tokenizer_of("llama")
    assert tokenizer.token_text(tokenizer.encode("of")[0]).startswith(" ")  # decode() of one id would drop it
    byte = tokenizer.id_of("<0xE2>")
    assert tokenizer.token_bytes(byte) == b"\xe2"
    assert tokenizer.token_text(byte) == "\ufffd"


def test_added_token_outside_the_byte_alphabet(tokenizer_of):
    tokenizer = tokenizer_of("byte_level")
    mark = tokenizer.id_of("｜mark｜ ")
    assert tokenizer.token_text(mark) == tokenizer.decode([mark]) == "｜mark｜ "


def test_config_completes_the_backend(tmp_path, tokenizer_of):
    """Tokens that only tokenizer_config.json names; BOS as tokenizer.json says: all as transformers does."""
    transformers = pytest.importorskip("transformers")
    backend = tokenizers.Tokenizer.from_str(tokenizer_of("byte_level").backend.to_str())
    start = backend.token_to_id("<|start|>")
    template = tokenizers.processors.TemplateProcessing
    backend.post_processor = template(single="<|start|> $A", pair="<|start|> $A $B", special_tokens=[("<|start|>", start)])
    token = {"content": "<x>", "special": True, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    folder = save(
        backend,
        tmp_path,
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token={"__type": "AddedToken", "content": "<|start|>", "lstrip": False, "rstrip": False},
        eos_token="<|end|>",
        pad_token="<pad>",
        add_bos_token=False,
        added_tokens_decoder={"500": token},
        extra_special_tokens=["<y>"],
    )
    ours = load_tokenizer(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert ours.encode("Hello <x><y><pad>") == theirs.encode("Hello <x><y><pad>")
    assert ours.encode("Hello")[0] == ours.bos_token_id == start
    assert ours.encode("Hello", add_special_tokens=False)[0] != start
    assert {ours.id_of(text) for text in ("<x>", "<y>", "<pad>", "<|end|>")} <= ours.special_ids
    assert ours.size == len(theirs)
    assert ours.template_tokens == theirs.special_tokens_map


def test_truncation_and_padding_of_the_file_are_off(tmp_path, tokenizer_of):
    backend = tokenizers.Tokenizer.from_str(tokenizer_of("byte_level").backend.to_str())
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    ours = load_tokenizer(save(backend, tmp_path))
    assert ours.decode(ours.encode("Hello world, hello")) == "Hello world, hello"


def test_templates_of_a_folder(tmp_path, tokenizer_of):
    backend = tokenizer_of("byte_level").backend
    listed = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    folder = save(backend, tmp_path, chat_template=listed)
    assert load_tokenizer(folder).chat_templates == {"default": "A", "tool_use": "B"}
    (folder / "chat_template.jinja").write_text("C")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("D")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.chat_templates == {"default": "C", "tool_use": "B", "rag": "D"}
    assert tokenizer.chat_template == "C"


def test_folder_without_tokenizer(tmp_path):
    with pytest.raises(ConfigError, match="No tokenizer in"):
        load_tokenizer(tmp_path)


def test_broken_tokenizer_file(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="Cannot read the tokenizer"):
        load_tokenizer(tmp_path)


def test_folder_that_only_transformers_reads(tmp_path, smollm2, ours):
    """vocab.json and merges.txt, no tokenizer.json."""
    pytest.importorskip("transformers")
    model = json.loads((smollm2 / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("The capital of France is") == ours.encode("The capital of France is")


def test_logprob_entries(ours):
    entry = TokenLogprobs([7042, 905, 7042, 30], [-0.5, -0.25, -0.5, -3.0], 2)
    found = to_logprobs(entry, ours)
    assert list(found) == [7042, 905, 30]
    assert [(e.logprob, e.rank) for e in found.values()] == [(-0.5, 2), (-0.25, 1), (-3.0, 3)]
    assert found[7042].decoded_token == " Paris"
    assert to_logprobs(entry, None)[905].decoded_token is None
