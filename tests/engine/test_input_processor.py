"""Prompts and parameters: what becomes of them, and what is refused with which words."""

import pytest
from scripted_core import EOS, make_engine_config

from minivllm.engine.input_processor import InputProcessor
from minivllm.errors import ClientError
from minivllm.messages.sampling_params import SamplingParams


@pytest.fixture
def process(tokenizer):
    def run(prompt, max_length=64, clamp=False, config=None, **params):
        inputs = InputProcessor(config or make_engine_config(tokenizer), tokenizer, max_length, clamp)
        return inputs.process("r#1", inputs.tokenize(prompt), SamplingParams(**params), priority=3, arrival_time=1.5)

    return run


def test_prompt_forms(process, tokenizer):
    ids = tokenizer.encode("The capital")
    for prompt in ("The capital", ids, tuple(ids), {"prompt": "The capital"}, {"prompt_token_ids": ids, "prompt": "other"}):
        request = process(prompt)
        assert request.prompt_token_ids == ids
    assert process({"prompt": "x", "cache_salt": "s"}).cache_salt == "s"
    assert (request.request_id, request.priority, request.arrival_time) == ("r#1", 3, 1.5)
    assert request.eos_token_ids == [tokenizer.id_of(EOS)]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("", "cannot be empty"),
        ([], "cannot be empty"),
        ({"prompt_token_ids": []}, "cannot be empty"),
        ({}, "needs `prompt`"),
        ({"prompt": 5}, "must be a text"),
        (None, "not NoneType"),
        ([1, "a"], "must be integers"),
        ([True, 2], "must be integers"),
        ([1, 1.5], "must be integers"),
        ([-1], "Token id -1 is out of vocabulary"),
        ([3, 1_000_000], "Token id 1000000 is out of vocabulary"),
        ({"prompt": "x", "cache_salt": ""}, "cache_salt"),
        ({"prompt": "x", "cache_salt": "s" * 200}, "cache_salt"),
    ],
)
def test_refused_prompts(process, prompt, text):
    with pytest.raises(ClientError, match=text):
        process(prompt)


def test_truncation_keeps_the_end(process):
    ids = list(range(10, 30))
    assert process(ids, truncate_prompt_tokens=3).prompt_token_ids == [27, 28, 29]
    assert process(ids, truncate_prompt_tokens=50).prompt_token_ids == ids
    assert process(list(range(100)), truncate_prompt_tokens=-1, max_tokens=16).prompt_token_ids == list(range(52, 100))
    assert len(process(list(range(100)), truncate_prompt_tokens=-1, max_tokens=None).prompt_token_ids) == 63
    with pytest.raises(ClientError, match="cannot be empty"):
        process(ids, truncate_prompt_tokens=0)
    with pytest.raises(ClientError, match=r"value \(65\) is greater than max_model_len \(64\)") as caught:
        process(ids, truncate_prompt_tokens=65)
    assert caught.value.param == "truncate_prompt_tokens"


def test_max_tokens(process):
    ids = [10] * 10
    assert process(ids, max_tokens=None).sampling_params.max_tokens == 54
    assert process(ids, max_tokens=54).sampling_params.max_tokens == 54
    assert process(ids, max_tokens=0).sampling_params.max_tokens == 0
    assert process(ids, max_tokens=500, clamp=True).sampling_params.max_tokens == 54
    assert process(ids, max_tokens=500, min_tokens=200, clamp=True).sampling_params.min_tokens == 54
    assert process([10] * 64, max_tokens=0).sampling_params.max_tokens == 0


@pytest.mark.parametrize(
    ("length", "max_tokens", "text", "param"),
    [
        (90, 1, "maximum context length is 64 tokens. However, your prompt contains 90 input tokens, which exceeds this "
                "limit even without any output tokens. Please reduce the length of the input prompt.", "input_tokens"),
        (10, 60, "maximum context length is 64 tokens. However, you requested 60 output tokens and your prompt contains 10 "
                 "input tokens, for a total of 70 tokens.", "input_tokens"),
        (64, None, "you requested 1 output tokens and your prompt contains 64 input tokens", "input_tokens"),
        (10, 65, "max_tokens=65 cannot be greater than max_model_len=64. Please request fewer output tokens.", "max_tokens"),
    ],
)  # fmt: skip
def test_too_long(process, length, max_tokens, text, param):
    with pytest.raises(ClientError) as caught:
        process([10] * length, max_tokens=max_tokens)
    assert text in caught.value.message and caught.value.param == param


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"logprobs": 21}, "Requested sample logprobs of 21, which is greater than max allowed: 20"),
        ({"prompt_logprobs": 30}, "Requested prompt logprobs of 30, which is greater than max allowed: 20"),
        ({"logprobs": -1}, "Requested sample logprobs of -1"),
        ({"logit_bias": {5000: 1}}, "logit_bias contains out-of-vocab token id 5000"),
        ({"logit_bias": {-1: 1}}, "logit_bias contains out-of-vocab token id -1"),
        ({"allowed_token_ids": [5000]}, "allowed_token_ids contains out-of-vocab"),
        ({"stop_token_ids": [5000]}, "stop_token_ids contains out-of-vocab"),
        ({"stop": ["a", "\ud800"]}, "stop is not valid Unicode"),
        ({"bad_words": ["\udc00"]}, "bad_words is not valid Unicode"),
        ({"bad_words": [f"word{i}" for i in range(100)]}, "at most 128 token sequences"),
    ],
)
def test_refused_parameters(process, params, text):
    with pytest.raises(ClientError, match=text) as caught:
        process("x", **params)
    assert caught.value.param == next(iter(params))


def test_all_logprobs_where_allowed(process, tokenizer):
    from dataclasses import replace

    config = make_engine_config(tokenizer)
    config = replace(config, model=replace(config.model, max_logprobs=-1))
    assert process("x", config=config, logprobs=-1).sampling_params.logprobs == -1


def test_bad_words_with_and_without_blank(process, tokenizer):
    with_blank, without = tokenizer.encode(" three"), tokenizer.encode("three")
    assert process("x", bad_words=["three"]).bad_words_token_ids == [without, with_blank]
    assert process("x", bad_words=[" three"]).bad_words_token_ids == [without, with_blank]
    assert process("x").bad_words_token_ids == []


def test_bad_words_must_leave_something(process, tokenizer):
    forms = [ids[0] for ids in (tokenizer.encode("a"), tokenizer.encode(" a")) if len(ids) == 1]
    with pytest.raises(ClientError, match="forbids every token of allowed_token_ids"):
        process("x", bad_words=["a"], allowed_token_ids=forms)
    assert process("x", bad_words=["a"], allowed_token_ids=[*forms, 70]).sampling_params.allowed_token_ids == [*forms, 70]


def test_params_of_the_user_are_not_changed(tokenizer):
    inputs = InputProcessor(make_engine_config(tokenizer), tokenizer, 64)
    params = SamplingParams(max_tokens=None)
    inputs.process("r", inputs.tokenize("x"), params)
    assert params.max_tokens is None
    with pytest.raises(ClientError, match="must be SamplingParams"):
        inputs.process("r", inputs.tokenize("x"), {"max_tokens": 3})
