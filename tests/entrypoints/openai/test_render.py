"""The routes that show what a request would give to the engine, and the header that names fields nobody knows."""

import pytest
from fakes import Client, FakeEngine

HI = [{"role": "user", "content": "Hi"}]
CHAT, COMP = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def client() -> Client:
    return Client(FakeEngine())


def test_chat(client):
    fields = {"messages": HI, "temperature": 0.5, "stop": "x", "priority": 3, "cache_salt": "s", "request_id": "abc"}
    shown = client.post(f"{CHAT}/render", fields | {"stream": True, "stream_options": {"include_usage": True}}).json()
    assert shown["prompt"] == "<|user|>Hi<|end|><|assistant|>" and client.engine.requests == []
    params = shown.pop("sampling_params")
    assert (params["temperature"], params["stop"], params["max_tokens"], params["n"]) == (0.5, ["x"], None, 1)
    ids = client.engine.tokenizer.encode(shown["prompt"])
    assert shown == {
        "request_id": "chatcmpl-abc",
        "model": "fake",
        "prompt": shown["prompt"],
        "token_ids": ids,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": "s",
        "priority": 3,
    }
    client.post(CHAT, fields)
    (asked,) = client.engine.requests
    assert asked[0]["prompt_token_ids"] == ids and asked[1].temperature == 0.5
    refused = client.post(f"{CHAT}/render", {"messages": HI, "temperature": 9})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "temperature"


def test_completions(client):
    structured = {"structured_outputs": {"regex": "a+"}}
    first, second = client.post(f"{COMP}/render", {"prompt": ["a b", "c"], "request_id": "abc"} | structured).json()
    assert [first["request_id"], second["request_id"]] == ["cmpl-abc-0", "cmpl-abc-1"]
    assert first["token_ids"] == client.engine.tokenizer.encode("a b") and second["prompt"] == "c"
    assert first["sampling_params"]["structured_outputs"]["regex"] == "a+" and first["sampling_params"]["max_tokens"] == 16
    (given,) = client.post(f"{COMP}/render", {"prompt": [1, 2]}).json()
    assert (given["token_ids"], given["prompt"]) == ([1, 2], None)


def test_apply_template(client):
    assert client.post("/apply-template", {"messages": HI}).json() == {"prompt": "<|user|>Hi<|end|><|assistant|>"}
    fields = {"messages": HI, "add_generation_prompt": False}
    assert client.post("/apply-template", fields).json() == {"prompt": "<|user|>Hi<|end|>"}
    assert client.post("/apply-template", {"messages": [{"role": "x"}]}).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMP, "/v1/messages"])
def test_unknown_fields_are_named(client, path, stream):
    known = {"prompt": "x"} if path == COMP else {"messages": HI, "max_tokens": 9}
    known |= {"model": "fake", "stream": stream, "metadata": {"user_id": "b"}, "service_tier": "auto"}
    if path != "/v1/messages":
        known |= {"length_penalty": 1.0, "best_of": 1, "safety_identifier": "s", "prompt_cache_key": "k"}
        known |= {"user": "u", "store": True}
    reply = client.post(path, known)
    assert reply.status_code == 200 and "x-minivllm-ignored" not in reply.headers
    unknown = {"temprature": 0, "a\r\nb": 1, "ü, x": 2} | {f"f{number}": 1 for number in range(30)}
    named = client.post(path, known | unknown).headers["x-minivllm-ignored"].split(", ")
    assert named[:4] == ["temprature", "a%0D%0Ab", "%C3%BC%2C%20x", "f0"] and len(named) == 20
