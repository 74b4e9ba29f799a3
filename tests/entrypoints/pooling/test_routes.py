"""The routes of pooling models on a fake engine: forms of input, shapes of answers, refusals."""

import base64
import struct
from collections.abc import Callable
from typing import Any

import pytest
from fakes import Client, FakeEngine

from minivllm.config.sections.pooling import PoolingConfig

EMBED = PoolingConfig(task="embed", types=("mean",), width=4)
CLASSES = PoolingConfig(task="classify", types=("cls",), width=3, labels=("bad", "fair", "good"))
CROSS = PoolingConfig(task="classify", types=("cls",), width=1, labels=("LABEL_0",), activation="sigmoid")


@pytest.fixture
def make() -> Callable[..., Client]:
    def client(pooling: PoolingConfig | None, **options: Any) -> Client:
        return Client(FakeEngine(pooling=pooling, **options))

    return client


def vector(text: str) -> list[float]:
    """What the fake engine makes of a text: its number of words, then ones."""
    return [float(len(text.split())), 1.0, 1.0, 1.0]


def test_embeddings(make) -> None:
    client = make(EMBED)
    body = client.post("/v1/embeddings", {"model": "fake", "input": ["one", "one two three"], "request_id": "x"}).json()
    assert list(body) == ["id", "object", "created", "model", "data", "usage"]
    assert (body["id"], body["object"], body["model"]) == ("embd-x", "list", "fake")
    assert body["data"] == [
        {"index": 0, "object": "embedding", "embedding": vector("one")},
        {"index": 1, "object": "embedding", "embedding": vector("one two three")},
    ]
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == 4


@pytest.mark.parametrize(
    ("given", "count"), [("one", 1), (["one"], 1), ([5, 6, 7], 1), ([[5], [6, 7]], 2), (["one", [6, 7]], 2), ("", 1)]
)
def test_forms_of_input(given: Any, count: int, make) -> None:
    reply = make(EMBED).post("/v1/embeddings", {"input": given})
    assert reply.status_code == 200 and len(reply.json()["data"]) == count


def test_base64(make) -> None:
    body = make(EMBED).post("/v1/embeddings", {"input": "one two", "encoding_format": "base64"}).json()
    assert list(struct.unpack("<4f", base64.b64decode(body["data"][0]["embedding"]))) == vector("one two")


def test_messages_go_through_the_chat_template(make) -> None:
    client = make(EMBED)
    body = client.post("/v1/embeddings", {"messages": [{"role": "user", "content": "Hi you"}]}).json()
    prompt = client.engine.pooled[0][0]
    assert prompt["prompt"] == "<|user|>Hi you<|end|>" and body["usage"]["prompt_tokens"] == len(prompt["prompt_token_ids"])


def test_parameters_reach_the_engine(make) -> None:
    client = make(EMBED)
    fields = {"truncate_prompt_tokens": 5, "truncation_side": "left", "dimensions": 2, "use_activation": False, "priority": 3}
    client.post("/v1/embeddings", {"input": "x", "cache_salt": "s", "add_special_tokens": False, **fields})
    prompt, params, request_id, priority = client.engine.pooled[0]
    assert prompt == {"prompt": "x", "add_special_tokens": False, "cache_salt": "s"}
    assert (params.task, params.dimensions, params.truncate_prompt_tokens, params.truncation_side) == ("embed", 2, 5, "left")
    assert params.use_activation is False and priority == 3 and request_id.startswith("embd-") and request_id.endswith("-0")


def test_pooling_and_its_tasks(make) -> None:
    client = make(EMBED)
    body = client.post("/pooling", {"input": "one"}).json()
    assert body["data"] == [{"index": 0, "object": "pooling", "data": vector("one")}] and body["id"].startswith("pool-")
    body = client.post("/pooling", {"input": "one two", "task": "token_embed"}).json()
    assert body["data"][0]["data"] == [vector("one two")] * 2


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_classify(path: str, make) -> None:
    body = make(CLASSES).post(path, {"input": ["one two", "one"]}).json()
    assert body["data"][0] == {"index": 0, "label": "bad", "probs": [2.0, 1.0, 1.0], "num_classes": 3}
    assert body["id"].startswith("classify-") and body["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")], ids=str
)
def test_scores_of_a_cross_encoder(path: str, names: tuple[str, str], make) -> None:
    client = make(CROSS)
    body = client.post(path, {names[0]: "one", names[1]: ["one two", {"text": "x"}]}).json()
    assert body["data"] == [{"index": 0, "object": "score", "score": 3.0}, {"index": 1, "object": "score", "score": 2.0}]
    prompts = [call[0] for call in client.engine.pooled]
    assert prompts == [{"prompt": "one", "second": "one two"}, {"prompt": "one", "second": "x"}]


def test_scores_by_similarity_read_each_text_once(make) -> None:
    client = make(EMBED)
    body = client.post("/score", {"text_1": ["one", "one two"], "text_2": ["one", "one"]}).json()
    assert [each["score"] for each in body["data"]] == pytest.approx([1.0, 5 / 28**0.5])
    assert len(client.engine.pooled) == 2 and body["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank(path: str, make) -> None:
    body = make(CROSS).post(path, {"query": "one", "documents": ["a", "a b c", {"text": "a b"}], "top_n": 2}).json()
    assert list(body) == ["id", "model", "usage", "results"] and body["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    assert body["results"] == [
        {"index": 1, "document": {"text": "a b c"}, "relevance_score": 4.0},
        {"index": 2, "document": {"text": "a b"}, "relevance_score": 3.0},
    ]


@pytest.mark.parametrize(
    ("pooling", "path", "what"),
    [
        (None, "/v1/embeddings", "Embeddings API"),
        (None, "/pooling", "Pooling API"),
        (None, "/classify", "Classification API"),
        (None, "/v1/score", "Score API"),
        (None, "/v2/rerank", "Rerank (Score) API"),
        (CLASSES, "/v1/embeddings", "Embeddings API"),
        (CLASSES, "/score", "Score API"),
        (EMBED, "/classify", "Classification API"),
        (EMBED, "/v1/chat/completions", "Chat Completions API"),
        (EMBED, "/v1/completions", "Completions API"),
        (EMBED, "/v1/messages", "Messages API"),
    ],
)
def test_what_the_model_does_not_do(pooling: PoolingConfig | None, path: str, what: str, make) -> None:
    reply = make(pooling).post(path, {"input": "x", "messages": [{"role": "user", "content": "x"}], "prompt": "x"})
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, f"The model does not support {what}")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": "x", "messages": [{"role": "user", "content": "x"}]}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": [[]]}, "input"),
        ("/v1/embeddings", {"input": [1, "x"]}, "input"),
        ("/v1/embeddings", {"input": 7}, "input"),
        ("/v1/embeddings", {"input": ["x"] * 2049}, "input"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ("/v1/embeddings", {"input": "x", "embed_dtype": "fp8"}, "embed_dtype"),
        ("/v1/embeddings", {"input": "x", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "x", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "x", "truncation_side": "middle"}, "truncation_side"),
        ("/v1/embeddings", {"input": "x", "cache_salt": ""}, "cache_salt"),
        ("/pooling", {"input": "x", "task": "reward"}, "task"),
        ("/score", {"text_1": "x"}, "text_1"),
        ("/score", {"text_1": ["x", "y"], "text_2": ["x", "y", "z"]}, "text_1"),
        ("/score", {"text_1": "x", "text_2": []}, "text_1"),
        ("/score", {"text_1": "x", "text_2": [1]}, "text_2"),
        ("/rerank", {"query": "x"}, "documents"),
        ("/rerank", {"query": "x", "documents": []}, "documents"),
        ("/rerank", {"query": "x", "documents": ["y"], "top_n": -1}, "top_n"),
    ],
)
def test_refusals_name_the_field(path: str, fields: dict[str, Any], param: str, make) -> None:
    reply = make(EMBED).post(path, fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


def test_an_unknown_model(make) -> None:
    assert make(EMBED).post("/v1/embeddings", {"input": "x", "model": "other"}).status_code == 404


def test_one_text_that_fails_ends_the_others(make) -> None:
    client = make(EMBED, delay=5.0, max_model_len=3)
    reply = client.post("/v1/embeddings", {"input": ["a", "b", "a b c d"]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input")
    assert sorted(client.engine.aborted) == sorted(call[2] for call in client.engine.pooled[:2]) and not client.engine.running
