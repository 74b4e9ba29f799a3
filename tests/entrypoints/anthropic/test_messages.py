"""`/v1/messages` on a fake engine: through the `anthropic` SDK over a socket, and field by field."""

import json
from collections.abc import Iterator

import anthropic
import pytest
from fakes import Client, FakeEngine
from served import Served

TEXT = 'Hello wörld 🐢! "quoted"\n'
HI = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = ["Sure", ".", '<tool_call>{"name": "add", "arguments": {"a": ', "1", "}}", "</tool_call>"]
HERMES = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ m.reasoning_content }}"
    "{{ m.tool_calls | tojson if m.tool_calls }}<|end|>{% endfor %}{{ tools | tojson if tools }}<|assistant|>"
)


def sdk(served: Served, key="secret") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=served.url, api_key=key, max_retries=0)


def calling_engine() -> FakeEngine:
    engine = FakeEngine(CALL, max_model_len=2000)
    engine.tokenizer.chat_template = HERMES
    return engine


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served(FakeEngine(), api_key=("secret",))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def calling() -> Iterator[Served]:
    server = Served(calling_engine(), tool_call_parser="hermes")
    yield server
    server.stop()


def test_whole(served):
    message = sdk(served).messages.create(model="fake", max_tokens=50, messages=HI, system="Be brief.")
    assert message.content[0].text == TEXT and message.role == "assistant" and message.id.startswith("msg-")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == 6 and message.usage.input_tokens > 4
    assert served.engine.requests[-1][0]["prompt"] == "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>"
    cut = sdk(served).messages.create(model="fake", max_tokens=2, messages=HI)
    assert cut.stop_reason == "max_tokens" and cut.content[0].text == "Hello wörld"


def test_streamed_equals_whole(served):
    with sdk(served).messages.stream(model="fake", max_tokens=50, messages=HI) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert pieces == ["Hello", " wörld", " 🐢", "!", ' "quoted"', "\n"] and final.content[0].text == TEXT
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 6)


def test_wire_events():
    client = Client(FakeEngine(["Hi", "!"]))
    reply = client.post("/v1/messages", {"model": "fake", "max_tokens": 9, "messages": HI, "stream": True})
    events = [block.split("\n") for block in reply.text.strip().split("\n\n")]
    kinds = [line.removeprefix("event: ") for line, _ in events]
    data = [json.loads(line.removeprefix("data: ")) for _, line in events]
    assert kinds == [each["type"] for each in data] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert data[0]["message"]["content"] == [] and data[0]["message"]["stop_reason"] is None
    assert data[1] | {"index": 0} == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert data[5]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None} and data[5]["usage"]["output_tokens"] == 2


def test_tools(calling):
    messages = sdk(calling).messages
    whole = messages.create(model="fake", max_tokens=50, messages=HI, tools=[TOOL])
    text, use = whole.content
    assert (text.text, use.type, use.name, use.input, whole.stop_reason) == ("Sure.", "tool_use", "add", {"a": 1}, "tool_use")
    with messages.stream(model="fake", max_tokens=50, messages=HI, tools=[TOOL]) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["text", "tool_use"]
    assert (final.content[0].text, final.content[1].input, final.stop_reason) == ("Sure.", {"a": 1}, "tool_use")
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "2"}]}
    history = [
        *HI,
        {"role": "assistant", "content": [thought, text.model_dump(), use.model_dump()]},
        {"role": "user", "content": [result]},
    ]
    messages.create(model="fake", max_tokens=5, messages=history, tools=[TOOL], tool_choice={"type": "none"})
    prompt = calling.engine.requests[-1][0]["prompt"]
    assert "<|assistant|>Sure.hm[{" in prompt and '"arguments": {"a": 1}' in prompt and "<|tool|>2<|end|>" in prompt
    cut = messages.create(model="fake", max_tokens=4, messages=HI, tools=[TOOL])
    assert cut.stop_reason == "max_tokens" and cut.content[1].input == {}


def test_stop_sequence_prefill_and_sampling():
    engine = FakeEngine()
    client = Client(engine)
    body = {
        "model": "fake",
        "max_tokens": 5,
        "messages": [*HI, {"role": "assistant", "content": "So"}],
        "stop_sequences": ["x"],
    }
    reply = client.post("/v1/messages", body | {"temperature": 0.5, "top_k": 3, "seed": 4, "timeout_ms": 2000})
    assert reply.status_code == 200, reply.text
    prompt, params, *_ = engine.requests[-1]
    assert (params.stop, params.temperature, params.top_k, params.seed, params.max_tokens) == (["x"], 0.5, 3, 4, 5)
    assert engine.timeouts == [2.0] and prompt["prompt"].endswith("<|assistant|>So")


def test_count_tokens(served):
    counted = sdk(served).messages.count_tokens(model="fake", messages=HI, system="Be brief.")
    message = sdk(served).messages.create(model="fake", max_tokens=5, messages=HI, system="Be brief.")
    assert counted.input_tokens == message.usage.input_tokens


def test_keys(served):
    with pytest.raises(anthropic.AuthenticationError) as refused:
        sdk(served, "wrong").messages.create(model="fake", max_tokens=5, messages=HI)
    assert refused.value.body["type"] == "error" and refused.value.body["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"max_tokens": None}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"model": "nope"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages[0].content[0].text"),
        ({"temperature": -1}, 400, "temperature"),
        ({"stop_sequences": [""]}, 400, "stop_sequences"),
        ({"tools": [{"name": "a b"}]}, 400, "tools[0].name"),
        ({"tools": [{"name": "web_search", "type": "web_search_20250305"}]}, 400, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, 400, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}}, 400, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, 400, "thinking.budget_tokens"),
        ({"mcp_servers": [{}]}, 400, "mcp_servers"),
        ({"messages": [{"role": "user", "content": "long " * 200}]}, 400, "input_tokens"),
    ],
)
def test_refusals(change, status, param):
    body = {"model": "fake", "max_tokens": 5, "messages": HI} | change
    client = Client(FakeEngine())
    for stream in (False, True):
        reply = client.post("/v1/messages", body | {"stream": stream})
        assert reply.status_code == status, reply.text
        error = reply.json()["error"]
        assert reply.json()["type"] == "error" and error["param"] == param
        assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


def test_an_error_in_the_stream_is_an_event():
    engine = FakeEngine()
    engine.fail_after = 2
    reply = Client(engine).post("/v1/messages", {"model": "fake", "max_tokens": 9, "messages": HI, "stream": True})
    kind, data = reply.text.strip().split("\n\n")[-1].split("\n")
    assert kind == "event: error" and json.loads(data.removeprefix("data: "))["error"]["type"] == "api_error"
