"""`/infill` and `suffix` on a fake engine whose tokenizer has Qwen's tokens."""

import json

import pytest
from fakes import Client, FakeEngine

NAMES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|endoftext|>")


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(script=["x", "y", "z"])
    for name in NAMES:
        engine.tokenizer.learn(name)
    return engine


@pytest.fixture
def client(engine) -> Client:
    return Client(engine)


def prompts(engine: FakeEngine) -> list[str]:
    return [engine.tokenizer.decode(prompt["prompt_token_ids"]) for prompt, *_ in engine.requests]


def test_whole(client, engine):
    extra = [{"filename": "a.py", "text": "b"}]
    body = {"input_prefix": "one", "input_suffix": " two", "prompt": " a", "input_extra": extra, "n_predict": 2, "top_k": 7}
    body |= {"repeat_penalty": 1.5, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "n_indent": 4, "stop": ["q"]}
    reply = client.post("/infill", body)
    assert reply.json() == {
        "content": "xy",
        "stop": True,
        "stop_type": "limit",
        "stopping_word": "",
        "model": "fake",
        "tokens_predicted": 2,
        "tokens_evaluated": len(engine.requests[0][0]["prompt_token_ids"]),
        "tokens_cached": 0,
        "truncated": False,
    }
    assert reply.headers["x-minivllm-ignored"] == "n_indent"
    assert prompts(engine)[0].endswith("--- a.py ---\n\nb\n<|fim_prefix|>one<|fim_suffix|> two<|fim_middle|> a")
    params = engine.requests[0][1]
    assert (params.max_tokens, params.top_k, params.repetition_penalty, params.stop) == (2, 7, 1.5, ["q"])
    assert {engine.tokenizer.token_text(index) for index in params.stop_token_ids} == set(NAMES)
    assert engine.timeouts == [1.5]


def test_streamed(client):
    reply = client.post("/infill", {"input_prefix": "", "input_suffix": "s", "stream": True})
    events = [json.loads(block.removeprefix("data: ")) for block in reply.text.removesuffix("\n\n").split("\n\n")]
    assert [(event["content"], event["stop"], event["stop_type"]) for event in events] == [
        ("x", False, "none"),
        ("y", False, "none"),
        ("z", True, "eos"),
    ]
    assert events[-1]["tokens_predicted"] == 3


def test_suffix(client, engine):
    body = {"prompt": ["one", ""], "suffix": " two", "max_tokens": 1}
    choices = client.post("/v1/completions", body).json()["choices"]
    assert [choice["text"] for choice in choices] == ["x", "x"]
    body = {"prompt": engine.tokenizer.encode("one"), "suffix": " two", "ignore_eos": True}
    client.post("/v1/completions", body)
    assert prompts(engine) == [f"<|fim_prefix|>{text}<|fim_suffix|> two<|fim_middle|>" for text in ("one", "", "one")]
    assert len(engine.requests[0][1].stop_token_ids) == 4 and engine.requests[2][1].stop_token_ids == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n_predict": -2}, "n_predict"),
        ({"n": 2}, "n"),
        ({"input_prefix": 5}, "input_prefix"),
        ({"input_extra": [{"filename": "x"}]}, "input_extra[0].text"),
        ({"prompt": ["a"]}, "prompt"),
        ({"grammar": "root ::= [a]"}, "grammar"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"t_max_predict_ms": -1}, "t_max_predict_ms"),
        ({"temperature": 9}, "temperature"),
    ],
)
def test_refusals(client, fields, param):
    reply = client.post("/infill", {"input_prefix": "a", "input_suffix": "b"} | fields)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param


def test_model_that_has_not_learnt_it():
    reply = Client(FakeEngine()).post("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert reply.status_code == 400 and "fills in the middle" in reply.json()["error"]["message"]
