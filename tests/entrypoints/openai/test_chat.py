"""`/v1/chat/completions` on a fake engine: exact bodies, whole and streamed."""

import msgspec
import pytest
from fakes import Client, FakeEngine

from minivllm.messages.sampling_params import OutputKind, SamplingParams

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
USAGE = {
    "prompt_tokens": 4,
    "completion_tokens": 2,
    "total_tokens": 6,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine) -> Client:
    return Client(engine)


def ask(client: Client, **fields: object) -> dict:
    reply = client.post(CHAT, {"messages": HI} | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def chunk(body: dict, choices: list, **more: object) -> dict:
    head = {name: body[name] for name in ("id", "created", "system_fingerprint")}
    return head | {"object": "chat.completion.chunk", "model": "fake", "choices": choices} | more


def test_whole_reply(client):
    body = ask(client, max_tokens=2)
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body.pop("system_fingerprint").startswith("fp_")
    assert body == {
        "object": "chat.completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello wörld", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        "usage": USAGE,
        "service_tier": None,
        "prompt_logprobs": None,
    }


def test_streamed_reply(client):
    *chunks, done = client.events(CHAT, {"messages": HI, "max_tokens": 2})
    assert done == "[DONE]"
    rest = {"logprobs": None, "finish_reason": None}
    deltas = [{"role": "assistant", "content": ""}, {"content": "Hello"}, {"content": " wörld"}]
    end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    assert chunks == [chunk(chunks[0], [{"index": 0, "delta": d} | rest]) for d in deltas] + [chunk(chunks[0], [end])]


def test_streamed_usage(client, engine):
    engine.cached_tokens = 3
    *chunks, last, _ = client.events(CHAT, {"messages": HI, "max_tokens": 2, "stream_options": {"include_usage": True}})
    assert all(c["usage"] is None for c in chunks)
    assert last == chunk(chunks[0], [], usage=USAGE | {"prompt_tokens_details": {"cached_tokens": 3}})


def test_continuous_usage(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = client.events(CHAT, {"messages": HI, "max_tokens": 2, "stream_options": options})
    assert [e["usage"]["completion_tokens"] for e in events[:-1]] == [1, 1, 2, 2, 2]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("logprobs", [{}, {"logprobs": True, "top_logprobs": 2}])
def test_stream_folds_to_the_whole_reply(client, n, logprobs):
    fields = {"n": n, "return_token_ids": True} | logprobs
    body = ask(client, **fields)
    events = client.events(CHAT, {"messages": HI} | fields)[:-1]
    assert [c["index"] for c in body["choices"]] == list(range(n))
    assert events[0]["prompt_token_ids"] == body["prompt_token_ids"]
    for choice in body["choices"]:
        own = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
        assert [c["delta"].get("role") for c in own] == ["assistant"] + [None] * (len(own) - 1)
        assert "".join(c["delta"].get("content", "") for c in own) == choice["message"]["content"]
        assert [token for c in own for token in c.get("token_ids", [])] == choice["token_ids"]
        entries = [entry for c in own if c["logprobs"] for entry in c["logprobs"]["content"]]
        assert entries == (choice["logprobs"]["content"] if logprobs else [])
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + ["stop"]


def test_logprobs(client):
    content = ask(client, max_tokens=2, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    top = [
        {"token": "<901>", "logprob": -1.0, "bytes": list(b"<901>")},
        {"token": "<902>", "logprob": -2.0, "bytes": list(b"<902>")},
    ]
    assert content == [
        {"token": "Hello", "logprob": -3.0, "bytes": list(b"Hello"), "top_logprobs": top},
        {"token": " wörld", "logprob": -3.0, "bytes": list(" wörld".encode()), "top_logprobs": top},
    ]


def test_logprobs_without_alternatives_and_as_ids(client, engine):
    content = ask(client, max_tokens=1, logprobs=True, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["content"]
    token = f"token_id:{engine.tokenizer.id_of('Hello')}"
    assert content == [{"token": token, "logprob": -3.0, "bytes": list(b"Hello"), "top_logprobs": []}]


def test_infinite_logprob_is_a_number(client, engine, monkeypatch):
    entry = engine._logprobs(1, 0)
    entry[1].logprob = float("-inf")
    monkeypatch.setattr(engine, "_logprobs", lambda token, count: {token: entry[1]})
    assert ask(client, max_tokens=1, logprobs=True)["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_prompt_logprobs(client):
    values = ask(client, prompt_logprobs=1)["prompt_logprobs"]
    assert len(values) == 4 and values[0] is None
    assert values[1]["901"] == {"logprob": -1.0, "rank": 1, "decoded_token": "<901>"}


def test_all_parameters_reach_the_engine(client, engine):
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "n": 2,
        "seed": 42,
        "stop": "END",
        "stop_token_ids": [5],
        "allowed_token_ids": [1, 2, 3],
        "bad_words": ["bad"],
        "ignore_eos": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "include_stop_str_in_output": True,
        "truncate_prompt_tokens": 3,
    }
    ask(client, **fields, logit_bias={"12": 1.5}, logprobs=True, top_logprobs=4, max_tokens=9, priority=-1, cache_salt="s")
    prompt, params, _, priority = engine.requests[0]
    wanted = SamplingParams(
        **fields | {"stop": ["END"]}, logit_bias={12: 1.5}, logprobs=4, max_tokens=9, output_kind=OutputKind.FINAL_ONLY
    )
    assert msgspec.structs.asdict(params) == msgspec.structs.asdict(wanted)
    assert prompt["prompt"] == "<|user|>Hi<|end|><|assistant|>" and prompt["cache_salt"] == "s" and priority == -1


def test_defaults(client, engine):
    ask(client)
    params = engine.requests[0][1]
    assert (params.temperature, params.top_p, params.max_tokens, params.seed, params.logprobs) == (1.0, 1.0, None, None, None)
    engine.set_defaults(temperature=0.6, top_k=20, max_new_tokens=3)
    ask(client, top_k=5)
    params = engine.requests[1][1]
    assert (params.temperature, params.top_k, params.max_tokens) == (0.6, 5, 3)


def test_max_completion_tokens_wins(client):
    assert ask(client, max_completion_tokens=1, max_tokens=5)["usage"]["completion_tokens"] == 1
    assert ask(client, max_tokens=3)["usage"]["completion_tokens"] == 3


def test_ids(client, engine):
    assert ask(client, request_id="mine")["id"] == "chatcmpl-mine"
    assert client.post(CHAT, {"messages": HI}, headers={"X-Request-Id": "abc"}).json()["id"] == "chatcmpl-abc"
    assert "evil" not in client.post(CHAT, {"messages": HI}, headers={"X-Request-Id": "evil" * 100}).json()["id"]
    assert [request[2] for request in engine.requests[:2]] == ["chatcmpl-mine", "chatcmpl-abc"]


def test_continue_final_message(client, engine):
    turns = [*HI, {"role": "assistant", "content": "Well"}]
    body = ask(client, messages=turns, continue_final_message=True)
    assert engine.requests[0][0]["prompt"] == "<|user|>Hi<|end|><|assistant|>Well"
    assert body["choices"][0]["message"]["role"] == "assistant"


def test_harmless_fields_are_accepted(client):
    fields = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "best_of": 1,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "none",
        "function_call": None,
        "never_heard_of": {"x": 1},
    }
    assert ask(client, **fields)["choices"][0]["finish_reason"] == "stop"


def test_response_role(engine):
    client = Client(engine, response_role="bot")
    assert ask(client)["choices"][0]["message"]["role"] == "bot"
    assert client.events(CHAT, {"messages": HI})[0]["choices"][0]["delta"]["role"] == "bot"


def test_model_without_template(engine):
    engine.tokenizer.chat_template = None
    reply = Client(engine).post(CHAT, {"messages": HI})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "messages"
    assert "--chat-template" in reply.json()["error"]["message"]
