"""Models, tokenizer, version, metrics and probes."""

import pytest
from fakes import Client, FakeEngine

from minivllm.version import __version__


@pytest.fixture
def client() -> Client:
    return Client(FakeEngine(served_model_name=("fake", "org/alias")))


def test_models(client):
    body = client.get("/v1/models").json()
    assert body["object"] == "list" and [model["id"] for model in body["data"]] == ["fake", "org/alias"]
    model = dict(body["data"][0])
    assert isinstance(model.pop("created"), int) and model.pop("permission")[0]["object"] == "model_permission"
    assert model == {
        "id": "fake",
        "object": "model",
        "owned_by": "minivllm",
        "root": "org/fake",
        "parent": None,
        "max_model_len": 100,
    }
    assert client.get("/v1/models/org/alias").json() == body["data"][1]
    reply = client.get("/v1/models/nope")
    assert reply.status_code == 404 and reply.json()["error"]["param"] == "model"


def test_second_name_is_named_in_the_reply(client):
    body = {"model": "org/alias", "prompt": "a", "max_tokens": 2}
    assert client.post("/v1/completions", body).json()["model"] == "org/alias"
    assert {event["model"] for event in client.events("/v1/completions", body)[:-1]} == {"org/alias"}


def test_tokenize_a_prompt(client):
    reply = client.post("/tokenize", {"prompt": "a b c", "return_token_strs": True})
    assert reply.json() == {"count": 3, "max_model_len": 100, "tokens": [1, 2, 3], "token_strs": ["a", " b", " c"]}
    assert client.post("/tokenize", {"prompt": ""}).json()["tokens"] == []


def test_tokenize_messages_as_chat_does(client):
    messages = [{"role": "user", "content": "Hi"}]
    body = client.post("/tokenize", {"messages": messages}).json()
    usage = client.post("/v1/chat/completions", {"messages": messages}).json()["usage"]
    assert body["count"] == len(body["tokens"]) == usage["prompt_tokens"] == 4 and body["token_strs"] is None
    assert client.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json()["count"] == 3


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "x", "content": ""}]}, "messages[0].role"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1000]}, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": None}, "tokens"),
    ],
)
def test_refusals(client, path, body, param):
    reply = client.post(path, body)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param


def test_unknown_model(client):
    assert client.post("/tokenize", {"prompt": "a", "model": "zz"}).status_code == 404


def test_detokenize(client):
    tokens = client.post("/tokenize", {"prompt": "wörld 🐢!"}).json()["tokens"]
    assert client.post("/detokenize", {"tokens": tokens}).json() == {"prompt": "wörld 🐢!"}
    assert client.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


def test_version_metrics_probes(client):
    assert client.get("/version").json() == {"version": __version__}
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "minivllm:num_requests_running 0.0" in metrics.text
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
        reply = client.request(method, path)
        assert (reply.status_code, reply.content) == (200, b"")
