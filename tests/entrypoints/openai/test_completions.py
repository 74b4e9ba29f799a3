"""`/v1/completions` on a fake engine: exact bodies, whole and streamed."""

import pytest
from fakes import Client, FakeEngine

COMP = "/v1/completions"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(script=["x", "y", "z"])


@pytest.fixture
def client(engine) -> Client:
    return Client(engine)


def ask(client: Client, **fields: object) -> dict:
    reply = client.post(COMP, fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_whole_reply(client):
    body = ask(client, prompt="a b", max_tokens=2)
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body.pop("system_fingerprint").startswith("fp_")
    assert body == {
        "object": "text_completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "text": "xy",
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "prompt_logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "service_tier": None,
    }


def test_streamed_reply(client):
    *chunks, usage, done = client.events(COMP, {"prompt": "a b", "max_tokens": 2, "stream_options": {"include_usage": True}})
    assert done == "[DONE]"
    assert [c["choices"] for c in chunks] == [
        [{"index": 0, "text": "x", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": "y", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
    ]
    assert {c["object"] for c in chunks} == {"text_completion"} and len({c["id"] for c in chunks}) == 1
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 4


def test_default_of_sixteen_tokens(client, engine):
    ask(client, prompt="a")
    assert engine.requests[0][1].max_tokens == 16
    assert ask(client, prompt="a", max_tokens=None)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("prompt", "ids"), [("a b", [[1, 2]]), (["a b", "a"], [[1, 2], [1]]), ([7, 8], [[7, 8]]), ([[7, 8], [9]], [[7, 8], [9]])]
)
def test_prompt_forms(client, engine, prompt, ids):
    engine.tokenizer.encode("a b")  # gets ids 1 and 2
    body = ask(client, prompt=prompt)
    assert sorted(request[0]["prompt_token_ids"] for request in engine.requests) == sorted(ids)
    assert [choice["index"] for choice in body["choices"]] == list(range(len(ids)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_batch_with_n_keeps_order(client, engine):
    engine.cached_tokens = 1
    prompts = ["a", "b", "c d"]
    body = ask(client, prompt=prompts, n=2, echo=True, max_tokens=1)
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(i, prompts[i // 2] + "x") for i in range(6)]
    assert body["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 6,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    choices = [c for e in client.events(COMP, {"prompt": prompts, "n": 2, "echo": True})[:-1] for c in e["choices"]]
    texts = ["".join(c["text"] for c in choices if c["index"] == i) for i in range(6)]
    assert texts == [prompts[i // 2] + "xyz" for i in range(6)]


def test_echo_with_logprobs(client):
    choice = ask(client, prompt="ab cd", max_tokens=1, echo=True, logprobs=1)["choices"][0]
    assert choice["text"] == "ab cdx"
    assert choice["logprobs"] == {
        "tokens": ["ab", " cd", "x"],
        "token_logprobs": [None, -3.0, -3.0],
        "top_logprobs": [None, {" cd": -3.0, "<901>": -1.0}, {"x": -3.0, "<901>": -1.0}],
        "text_offset": [0, 2, 5],
    }
    assert choice["prompt_logprobs"] is None


def test_streamed_echo_with_logprobs_is_the_whole_one(client):
    fields = {"prompt": "ab cd", "echo": True, "logprobs": 1, "return_token_ids": True}
    whole = ask(client, **fields)["choices"][0]
    own = [c for e in client.events(COMP, fields)[:-1] for c in e["choices"]]
    assert "".join(c["text"] for c in own) == whole["text"] == "ab cdxyz"
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for c in own for value in c["logprobs"][name]] == whole["logprobs"][name]
    assert own[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [token for c in own for token in c["token_ids"]] == whole["token_ids"]


def test_echo_of_ids_and_of_a_truncated_prompt(client, engine):
    ids = engine.tokenizer.encode("ab cd ef")
    assert ask(client, prompt=ids, echo=True)["choices"][0]["text"] == "ab cd efxyz"
    assert ask(client, prompt="ab cd ef", echo=True, truncate_prompt_tokens=1)["choices"][0]["text"] == " efxyz"


def test_echo_without_new_tokens(client):
    choice = ask(client, prompt="ab cd", max_tokens=0, echo=True, logprobs=0)["choices"][0]
    assert choice["text"] == "ab cd" and choice["logprobs"]["tokens"] == ["ab", " cd"]


def test_tokens_as_ids(client, engine):
    logprobs = ask(client, prompt="a", max_tokens=1, logprobs=1, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    token = f"token_id:{engine.tokenizer.id_of('x')}"
    assert logprobs["tokens"] == [token] and logprobs["top_logprobs"] == [{token: -3.0, "token_id:901": -1.0}]


def test_prompt_logprobs(client):
    choice = ask(client, prompt="a b", prompt_logprobs=0)["choices"][0]
    assert [value and list(value.values()) for value in choice["prompt_logprobs"]] == [
        None,
        [{"logprob": -3.0, "rank": 3, "decoded_token": " b"}],
    ]


def test_one_refused_prompt_refuses_the_call(client, engine):
    reply = client.post(COMP, {"prompt": ["a", "b " * 200, "c"]})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "input_tokens"
    assert engine.running == []
