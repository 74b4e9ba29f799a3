"""Models, tokenizer, version, metrics and probes."""

import pytest
from fakes import Client, FakeEngine

from minivllm.engine.live_requests import LiveRequest
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


def test_live_requests_and_cancel(client):
    live = LiveRequest("chatcmpl-abc", "decode", None, 1, 4, 9, 0, 5, 0, 30.0, 1.0, 9.0, 20.0)
    text = LiveRequest("cmpl-xyz-0", "waiting", "kv_cache", 1, 4, 0, 0, 0, 0, 3.0, 3.0, None, None)
    client.engine.live = [live, text]
    listed = client.get("/v1/requests").json()
    assert listed["object"] == "list" and [each["id"] for each in listed["data"]] == ["chatcmpl-abc", "cmpl-xyz-0"]
    assert listed["data"][1]["waits_for"] == "kv_cache" and listed["data"][0]["decode_ms"] == 20.0
    for name, known in (
        ("abc", live.id),
        ("chatcmpl-abc", live.id),
        ("xyz", text.id),
        ("cmpl-xyz", text.id),
        ("xyz-0", text.id),
    ):
        assert client.get(f"/v1/requests/{name}").json()["id"] == known
    assert client.request("DELETE", "/v1/requests/abc").json() == {"id": "abc", "object": "request", "deleted": True}
    assert client.engine.aborted == ["chatcmpl-abc"]
    for method in ("GET", "DELETE"):
        reply = client.request(method, "/v1/requests/ab")
        assert reply.status_code == 404 and reply.json()["error"]["param"] == "request_id"


def test_requests_are_for_admins_where_there_are_any():
    keys = {"api_key": ("client",), "admin_api_key": ("admin",)}
    for options, opens in (
        ({"api_key": ("client",)}, {"client"}),
        (keys, {"admin"}),
        ({"admin_api_key": ("admin",)}, {"admin"}),
    ):
        client = Client(FakeEngine(), **options)
        for key in ("client", "admin", "other"):
            headers = {"Authorization": f"Bearer {key}"}
            status = client.get("/v1/requests", headers=headers).status_code
            assert status == (200 if key in opens else 401), (options, key)
        known = {*options.get("api_key", ("client", "other")), *options.get("admin_api_key", ())}
        for key in ("client", "admin", "other"):
            status = client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code
            assert status == (200 if key in known else 401), (options, key)


def test_timeout_reaches_the_engine(client):
    client.post("/v1/completions", {"prompt": "a", "timeout_ms": 1500})
    client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "timeout_ms": 20})
    client.post("/v1/completions", {"prompt": "a"})
    assert client.engine.timeouts == [1.5, 0.02, None]
    reply = client.post("/v1/completions", {"prompt": "a", "timeout_ms": 0})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "timeout_ms"


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
