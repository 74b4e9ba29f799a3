"""What the OpenAI endpoints refuse, and with which words: always 4xx, always the envelope, `param` always named."""

import pytest
from fakes import Client, FakeEngine

CHAT, COMP = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def client() -> Client:
    return Client(FakeEngine())


def refused(reply, status: int = 400) -> dict:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert len(reply.content) < 16384
    error = reply.json()["error"]
    assert list(error) == ["message", "type", "param", "code"] and error["code"] == status
    return error


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": -1}, "temperature", "temperature must be non-negative, got -1.0."),
        ({"temperature": 2.5}, "temperature", "temperature must be in [0, 2], got 2.5."),
        ({"temperature": "1"}, "temperature", "temperature: Input should be a number, not a string."),
        ({"temperature": True}, "temperature", "temperature: Input should be a number, not a boolean."),
        ({"top_p": 0}, "top_p", "top_p must be in (0, 1], got 0.0."),
        ({"top_k": -2}, "top_k", "top_k must be 0 (disable), or at least 1, got -2."),
        ({"top_k": 0.01}, "top_k", "top_k: Input should be a valid integer, got a number with a fractional part (0.01)."),
        ({"top_k": 2**80}, "top_k", None),
        ({"min_p": 2}, "min_p", "min_p must be in [0, 1], got 2.0."),
        ({"presence_penalty": 3}, "presence_penalty", "presence_penalty must be in [-2, 2], got 3.0."),
        ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty must be greater than zero, got 0.0."),
        ({"n": 0}, "n", "n must be at least 1, got 0."),
        ({"n": 10_000_000}, "n", "n must be at most 1024, got 10000000."),
        ({"seed": 1.5}, "seed", "seed: Input should be a valid integer, got a number with a fractional part (1.5)."),
        ({"seed": 2**70}, "seed", None),
        ({"min_tokens": 99, "max_tokens": 16}, "min_tokens", "min_tokens must be less than or equal to max_tokens=16, got 99."),
        ({"max_tokens": "ten"}, "max_tokens", "max_tokens: Input should be a number, not a string."),
        ({"max_tokens": -1}, "max_tokens", None),
        ({"stop": [1, 2]}, "stop", "stop: Input should be a list of strings, but item 0 is an integer."),
        ({"stop": ""}, "stop", "stop cannot contain an empty string."),
        ({"stop": ["x"] * 17}, "stop", "stop: Input should have at most 16 items, got 17."),
        ({"stop_token_ids": ["a"]}, "stop_token_ids", None),
        ({"bad_words": [""]}, "bad_words", "bad_words cannot contain an empty string."),
        ({"bad_words": ["x"] * 129}, "bad_words", "bad_words: Input should have at most 128 items, got 129."),
        ({"allowed_token_ids": []}, "allowed_token_ids", "allowed_token_ids must not be empty."),
        (
            {"logit_bias": {"a": 1}},
            "logit_bias",
            "logit_bias contains key(s) that cannot be converted to integer token IDs: ['a']",
        ),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5", "logit_bias.5: Input should be a number, not a string."),
        (
            {"logit_bias": {str(i): 1 for i in range(1025)}},
            "logit_bias",
            "logit_bias must have at most 1024 entries, got 1025.",
        ),
        ({"prompt_logprobs": -1}, "prompt_logprobs", None),
        ({"prompt_logprobs": 21}, "prompt_logprobs", None),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`."),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "truncate_prompt_tokens must be at least -1, got -2."),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "truncate_prompt_tokens must be -1 or at least 1, got 0."),
        ({"stream_options": {}}, "stream_options", "Stream options can only be defined when `stream=True`."),
        ({"stream": "yes"}, "stream", "stream: Input should be a valid boolean, got 'yes'."),
        ({"cache_salt": "a/b"}, "cache_salt", None),
        ({"cache_salt": "x" * 129}, "cache_salt", None),
        ({"request_id": "a\nb"}, "request_id", "request_id must be 1 to 128 printable ASCII characters."),
        ({"best_of": 3}, "best_of", "`best_of` is not supported; leave it out, or set it to the value of `n`."),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMP])
def test_parameter(client, path, fields, param, message):
    base = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    error = refused(client.post(path, base | fields))
    assert error["type"] == "BadRequestError" and error["param"] == param
    if message is not None:
        assert error["message"] == message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grammar", 'root ::= "a"'),
        ("json_schema", {"type": "object"}),
        ("use_beam_search", True),
        ("prompt_embeds", "AAAA"),
        ("truncation_side", "right"),
        ("audio", {"voice": "x"}),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMP])
def test_unsupported_constraint_is_never_ignored(client, path, name, value):
    base = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    error = refused(client.post(path, base | {name: value}))
    assert error["param"] == name
    assert error["message"] == f"`{name}` is not supported by this server; leave it out."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": 5}, "suffix"),
        ({"suffix": "x", "echo": True}, "echo"),
        ({"suffix": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"suffix": "x"}, "suffix"),  # the tokenizer of this model has no tokens for it
    ],
)
def test_suffix(client, fields, param):
    assert refused(client.post(COMP, {"prompt": "x"} | fields))["param"] == param
    assert refused(client.post(CHAT, {"messages": [{"role": "user", "content": "x"}], "suffix": "x"}))["param"] == "suffix"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "banana", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}] * 2000}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ],
)
def test_chat(client, fields, param):
    base = {} if not fields or "messages" in fields else {"messages": [{"role": "user", "content": "x"}]}
    assert refused(client.post(CHAT, base | fields))["param"] == param


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["Hello", ""], None, 5, [1.5], ["a", 1], [["a"]], {"a": 1}, [1, "a"]])
def test_prompt(client, prompt):
    assert refused(client.post(COMP, {"prompt": prompt}))["param"] == "prompt"


def test_counts_of_prompts(client):
    error = refused(client.post(COMP, {"prompt": ["x"] * 1025}))
    assert error["message"] == "prompt: Input should have at most 1024 prompts, got 1025."
    error = refused(client.post(COMP, {"prompt": ["x"] * 100, "n": 100}))
    assert error["message"] == "n times the number of prompts must be at most 4096, got 10000."


@pytest.mark.parametrize("logprobs", [-5, -1, 21, 1000])
def test_completion_logprobs(client, logprobs):
    error = refused(client.post(COMP, {"prompt": "x", "logprobs": logprobs}))
    assert error["param"] == "logprobs"
    if logprobs == 1000:
        message = "logprobs: requested sample logprobs of 1000, which is greater than max allowed: 20"
        assert error["message"] == message


@pytest.mark.parametrize("path", [CHAT, COMP])
def test_unknown_model(client, path):
    error = refused(client.post(path, {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "model": "zz"}), 404)
    assert error["message"] == "The model `zz` does not exist. Valid aliases: fake."
    assert (error["type"], error["param"]) == ("NotFoundError", "model")


@pytest.mark.parametrize("path", [CHAT, COMP, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "raw",
    [
        "[]",
        '"hi"',
        "123",
        "null",
        "true",
        '{"prompt":',
        "",
        "[" * 100_000,
        '{"prompt": "x", "temperature": NaN}',
        '{"prompt": "x", "temperature": 1e400}',
        '{"prompt": "x", "frequency_penalty": -Infinity}',
        '{"prompt": "a\\ud83d b"}',
        '{"prompt": "x", "messages": [{"role": "user", "content": "\\udc00"}]}',
        b'{"prompt": "\xff"}',
    ],
)
def test_body_that_is_no_json_object(client, path, raw):
    assert refused(client.raw(path, raw))["param"] == "body"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "", "application/jsonx"])
def test_content_type(client, kind):
    error = refused(client.raw(COMP, '{"prompt": "x"}', kind), 415)
    assert error["param"] == "Content-Type" and error["type"] == "UnsupportedMediaTypeError"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"])
def test_content_types_of_json(client, kind):
    assert client.raw(COMP, '{"prompt": "x"}', kind).status_code == 200


def test_many_wrong_fields_give_one_bounded_message(client):
    error = refused(client.post(COMP, {"prompt": "x", "seed": "y" * 100_000, "top_k": "z", "n": [], "user": 1}))
    assert error["message"] == "top_k: Input should be a number, not a string. (3 more fields are wrong.)"
    error = refused(client.post(COMP, {"prompt": "x", "model": "m" * 100_000}), 404)
    assert len(error["message"]) < 300
