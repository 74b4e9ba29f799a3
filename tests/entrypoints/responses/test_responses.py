"""`/v1/responses` on a fake engine: through the `openai` SDK over a socket, and event by event."""

import json
from collections.abc import Iterator

import openai
import pytest
from fakes import Client, FakeEngine
from pydantic import BaseModel
from served import Served

TEXT = 'Hello wörld 🐢! "quoted"\n'
ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
RUN = {"type": "custom", "name": "run", "description": "Runs code."}
HERMES = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m.reasoning_content }}{{ m['content'] }}"
    "{{ m.tool_calls | tojson if m.tool_calls }}<|end|>{% endfor %}{{ tools | tojson if tools }}<|assistant|>"
)
CALL = ["<think>", "hm", "</think>", "Sure", ".", '<tool_call>{"name": "add", "arguments": {"a": ', "1", "}}", "</tool_call>"]


def sdk(served: Served) -> openai.OpenAI:
    return served.openai()


def thinking_engine(script: list[str]) -> FakeEngine:
    engine = FakeEngine(script, max_model_len=2000)
    engine.tokenizer.chat_template = HERMES
    return engine


def thinking_client(script: list[str]) -> Client:
    return Client(thinking_engine(script), tool_call_parser="hermes", reasoning_parser="qwen3")


def events(reply) -> list[dict]:
    """Those of a stream, of which each names its type twice and has its number."""
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8", reply.text
    blocks = [block.split("\n") for block in reply.text.removesuffix("\n\n").split("\n\n")]
    data = [json.loads(line.removeprefix("data: ")) for _, line in blocks]
    assert [line.removeprefix("event: ") for line, _ in blocks] == [each["type"] for each in data]
    assert [each["sequence_number"] for each in data] == list(range(len(data)))
    return data


def without_ids(value):
    """Ids and times differ from one request to the other."""
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if isinstance(value, dict):
        fixed = {"id", "item_id", "call_id", "created_at", "completed_at"}
        return {key: without_ids(each) for key, each in value.items() if key not in fixed}
    return value


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served(FakeEngine())
    yield server
    server.stop()


@pytest.fixture(scope="module")
def thinking() -> Iterator[Served]:
    server = Served(thinking_engine(CALL), tool_call_parser="hermes", reasoning_parser="qwen3")
    yield server
    server.stop()


def test_whole(served):
    response = sdk(served).responses.create(
        model="fake", input="Hi", instructions="Be brief.", metadata={"k": "v"}, user="me", temperature=0.5, service_tier="auto"
    )
    assert response.output_text == TEXT and response.id.startswith("resp_") and response.object == "response"
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert (response.metadata, response.user, response.temperature, response.top_p) == ({"k": "v"}, "me", 0.5, 1.0)
    assert (response.instructions, response.model, response.tools, response.tool_choice) == ("Be brief.", "fake", [], "auto")
    assert response.usage.output_tokens == 6 and response.usage.output_tokens_details.reasoning_tokens == 0
    assert response.usage.total_tokens == response.usage.input_tokens + 6
    assert served.engine.requests[-1][0]["prompt"] == "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>"
    cut = sdk(served).responses.create(model="fake", input="Hi", max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason, cut.output_text) == ("incomplete", "max_output_tokens", "Hello wörld")
    assert cut.output[0].status == "incomplete"
    counted = sdk(served).responses.input_tokens.count(model="fake", input="Hi", instructions="Be brief.")
    assert counted.input_tokens == response.usage.input_tokens


def test_streamed(served):
    with sdk(served).responses.stream(model="fake", input="Hi") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert deltas == ["Hello", " wörld", " 🐢", "!", ' "quoted"', "\n"]
    assert (final.output_text, final.status, final.usage.output_tokens) == (TEXT, "completed", 6)


def test_parsed(served):
    class Answer(BaseModel):
        a: int

    server = Served(FakeEngine(['{"a"', ": 1}"]))
    try:
        parsed = sdk(server).responses.parse(model="fake", input="Hi", text_format=Answer)
        form = server.engine.requests[-1][1].structured_outputs
    finally:
        server.stop()
    assert parsed.output_parsed == Answer(a=1)
    assert (json.loads(form.json)["required"], form.origin) == (["a"], "text.format.schema")
    assert parsed.text.format.type == "json_schema" and parsed.text.format.schema_["required"] == ["a"]


def test_events_of_a_text():
    reply = Client(FakeEngine(["Hi", "!"])).post("/v1/responses", {"model": "fake", "input": "Hi", "stream": True})
    data = events(reply)
    assert [each["type"] for each in data] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.delta", "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    created, begun, added, part_added, delta, _, text_done, part_done, done, completed = data
    item_id = added["item"]["id"]
    assert created["response"]["output"] == [] and created["response"]["usage"] is None
    assert created["response"] == begun["response"] and begun["response"]["status"] == "in_progress"
    item = {"id": item_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    assert added == {"type": "response.output_item.added", "sequence_number": 2, "output_index": 0, "item": item}
    place = {"item_id": item_id, "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert part_added == {"type": "response.content_part.added", "sequence_number": 3, **place, "part": part}
    assert delta == {"type": "response.output_text.delta", "sequence_number": 4, **place, "delta": "Hi", "logprobs": []}
    assert text_done == {"type": "response.output_text.done", "sequence_number": 6, **place, "text": "Hi!", "logprobs": []}
    part["text"] = "Hi!"
    assert part_done == {"type": "response.content_part.done", "sequence_number": 7, **place, "part": part}
    item |= {"status": "completed", "content": [part]}
    assert done == {"type": "response.output_item.done", "sequence_number": 8, "output_index": 0, "item": item}
    assert completed["response"]["output"] == [item] and completed["response"]["usage"]["output_tokens"] == 2


def test_events_of_thoughts_and_calls():
    body = {"model": "fake", "input": "Hi", "tools": [ADD], "reasoning": {"effort": "low", "summary": "auto"}}
    client = thinking_client(CALL)
    data = events(client.post("/v1/responses", body | {"stream": True}))
    names = [each["type"].removeprefix("response.") for each in data]
    assert names == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_summary_part.added",
        "reasoning_text.delta", "reasoning_summary_text.delta",
        "reasoning_text.done", "content_part.done", "reasoning_summary_text.done", "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", *["function_call_arguments.delta"] * names.count("function_call_arguments.delta"),
        "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    named = dict(zip(names, data, strict=True))  # the last of each
    assert named["reasoning_text.done"]["text"] == named["reasoning_summary_text.done"]["text"] == "hm"
    call = named["output_item.done"]["item"]
    assert (call["type"], call["name"], json.loads(call["arguments"]), call["status"]) == (
        "function_call", "add", {"a": 1}, "completed",
    )  # fmt: skip
    assert call["id"].startswith("fc_") and call["call_id"].startswith("call_")
    arguments = [each["delta"] for each in data if each["type"] == "response.function_call_arguments.delta"]
    assert "".join(arguments) == call["arguments"] == named["function_call_arguments.done"]["arguments"]
    assert client.engine.requests[-1][0]["prompt"].count('"name": "add"') == 1
    final = named["completed"]["response"]
    assert final["reasoning"] == {"effort": "low", "summary": "auto"} and final["tools"] == [ADD]
    assert final["usage"]["output_tokens_details"] == {"reasoning_tokens": 1}
    whole = client.post("/v1/responses", body).json()
    assert without_ids(whole) == without_ids(final)


def test_a_custom_tool_takes_a_text():
    script = ['<tool_call>{"name": "run", "arguments": {"input": "a', '\\n"b\\""', "}}", "</tool_call>"]
    script[1] = '\\nb"'
    data = events(
        thinking_client(script).post("/v1/responses", {"model": "fake", "input": "x", "tools": [RUN], "stream": True})
    )
    names = [each["type"].removeprefix("response.") for each in data]
    assert names == [
        "created", "in_progress", "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    item = data[-1]["response"]["output"][0]
    assert (item["type"], item["name"], item["input"], data[3]["delta"]) == ("custom_tool_call", "run", "a\nb", "a\nb")
    assert data[-1]["response"]["tools"] == [RUN]


def test_an_agent_loop(thinking):
    """The call is answered with the items themselves, and a second time with their ids."""
    responses = sdk(thinking).responses
    first = responses.create(model="fake", input="Hi", tools=[ADD])
    thought, text, call = first.output
    assert (thought.content[0].text, text.content[0].text, first.output_text) == ("hm", "Sure.", "Sure.")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": [{"type": "input_text", "text": "two"}]}
    prompts = []
    for output in (
        [item.model_dump(exclude_none=True) for item in first.output],
        [{"type": "item_reference", "id": item.id} for item in first.output],
    ):
        history = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, *output, result]
        responses.create(model="fake", input=history, tools=[ADD])
        prompts.append(thinking.engine.requests[-1][0]["prompt"])
    responses.create(model="fake", input=[result], previous_response_id=first.id, tools=[ADD])
    prompts.append(thinking.engine.requests[-1][0]["prompt"])
    assert prompts[0].startswith('<|user|>Hi<|end|><|assistant|>hmSure.[{"id": "call_')
    assert '"arguments": {"a": 1}' in prompts[0] and "<|end|><|tool|>two<|end|>" in prompts[0]
    assert prompts[0] == prompts[1] == prompts[2]
    none = responses.create(model="fake", input="Hi", tools=[ADD], tool_choice="none")
    assert [item.type for item in none.output] == ["reasoning", "message"] and "<tool_call>" in none.output_text


def test_a_cut_off_call_is_incomplete(thinking):
    cut = sdk(thinking).responses.create(model="fake", input="Hi", tools=[ADD], max_output_tokens=7)
    assert [item.status for item in cut.output] == ["completed", "completed", "incomplete"] and cut.status == "incomplete"
    going_on = sdk(thinking).responses.create(model="fake", input="Go on", previous_response_id=cut.id)
    assert going_on.status == "completed"
    assert "<|assistant|>hmSure.<|end|><|user|>Go on<|end|>" in thinking.engine.requests[-1][0]["prompt"]


def test_logprobs():
    client = thinking_client(["<think>", "hm", "</think>", "So", "."])
    body = {"model": "fake", "input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = client.post("/v1/responses", body).json()
    logprobs = whole["output"][1]["content"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs][-2:] == ["So", "."]
    assert logprobs[-1] == {
        "token": ".", "logprob": -3.0, "bytes": [46],
        "top_logprobs": [
            {"token": "<901>", "logprob": -1.0, "bytes": list(b"<901>")},
            {"token": "<902>", "logprob": -2.0, "bytes": list(b"<902>")},
        ],
    }  # fmt: skip
    data = events(client.post("/v1/responses", body | {"stream": True}))
    deltas = [entry for each in data if each["type"] == "response.output_text.delta" for entry in each["logprobs"]]
    assert deltas == logprobs and whole["top_logprobs"] == 2
    assert without_ids(data[-1]["response"]) == without_ids(whole)


def test_sampling_fields_and_truncation():
    engine = FakeEngine()
    client = Client(engine)
    body = {
        "model": "fake", "max_output_tokens": 5, "seed": 4, "top_k": 3, "stop": "x", "timeout_ms": 2000, "priority": 7,
        "text": {"format": {"type": "json_object"}, "verbosity": "low"}, "truncation": "auto",
        "include": ["reasoning.encrypted_content"], "stream_options": {"include_obfuscation": False}, "stream": True,
    }  # fmt: skip
    turns = [
        {"role": role, "content": f"{role} {number} " + "long " * 12} for number in range(4) for role in ("user", "assistant")
    ]
    given = [{"role": "developer", "content": "Rule"}, *turns, {"role": "user", "content": "Now"}]
    reply = client.post("/v1/responses", body | {"input": given})
    assert reply.status_code == 200, reply.text
    prompt, params, _, priority = engine.requests[-1]
    assert (params.seed, params.top_k, params.stop, params.max_tokens, priority) == (4, 3, ["x"], 5, 7)
    assert engine.timeouts == [2.0] and params.structured_outputs.json_object
    assert prompt["prompt"].startswith("<|system|>Rule<|end|><|user|>user 2 ") and "Now<|end|>" in prompt["prompt"]
    assert len(prompt["prompt_token_ids"]) <= 95
    assert client.post("/v1/responses", {"model": "fake", "input": given}).json()["error"]["param"] == "input_tokens"


def test_the_response_tells_what_was_asked():
    client = thinking_client(["Hi"])
    deep: dict = {}
    for _ in range(300):
        deep = {"x": deep}
    form = {"type": "json_schema", "name": "n", "strict": True, "schema": {"type": "object"}}
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "add"}, {"type": "custom", "name": "run"}],
    }
    body = {
        "model": "fake", "input": "Hi", "tools": [ADD | {"extra": deep}, RUN | {"format": {"type": "text", "extra": deep}}],
        "tool_choice": choice | {"extra": deep}, "parallel_tool_calls": False, "max_tool_calls": 3, "what": deep,
    }  # fmt: skip
    reply = client.post("/v1/responses", body)
    assert reply.headers["X-Minivllm-Ignored"] == "what"
    told = reply.json()
    assert (told["tools"], told["tool_choice"]) == ([ADD, RUN], choice)
    assert (told["parallel_tool_calls"], told["max_tool_calls"]) == (False, 3)
    told = client.post("/v1/responses", {"model": "fake", "input": "Hi", "text": {"format": form | {"extra": deep}}}).json()
    assert told["text"] == {"format": form, "verbosity": "medium"}


def test_render():
    client = Client(FakeEngine())
    body = {"model": "fake", "input": "Hi", "instructions": "Rule", "max_output_tokens": 3, "request_id": "abc"}
    shown = client.post("/v1/responses/render", body).json()
    assert shown["prompt"] == "<|system|>Rule<|end|><|user|>Hi<|end|><|assistant|>" and client.engine.requests == []
    assert (shown["request_id"], shown["sampling_params"]["max_tokens"]) == ("resp-abc", 3)
    assert shown["token_ids"] == client.engine.tokenizer.encode(shown["prompt"])


def call(**fields):
    return {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"} | fields


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"input": None}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"model": "nope"}, 404, "model"),
        ({"input": [{"role": "robot", "content": "x"}]}, 400, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, 400, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, 400, "input[0].content[0].text"),
        ({"input": [{"type": "mcp_call"}]}, 400, "input[0].type"),
        ({"input": [call(arguments="[]")]}, 400, "input[0].arguments"),
        ({"input": [call(), call(type="function_call_output", call_id="d", output="")]}, 400, "input[1].call_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, 404, "input[0].id"),
        ({"previous_response_id": "resp_1"}, 404, "previous_response_id"),
        ({"temperature": -1}, 400, "temperature"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"max_tokens": 5}, 400, "max_tokens"),
        ({"messages": []}, 400, "messages"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, 400, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, 400, "text.format.type"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
        ({"tools": [ADD | {"name": "a b"}]}, 400, "tools[0].name"),
        ({"tools": [RUN | {"format": {"type": "grammar"}}]}, 400, "tools[0].format"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, 400, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "custom", "name": "add"}}, 400, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "allowed_tools", "tools": []}}, 400, "tool_choice"),
        ({"include": ["everything"]}, 400, "include[0]"),
        ({"top_logprobs": 21}, 400, "top_logprobs"),
        ({"background": True, "store": False}, 400, "background"),
        ({"prompt": {"id": "x"}}, 400, "prompt"),
        ({"conversation": "x"}, 400, "conversation"),
        ({"n": 2}, 400, "n"),
        ({"metadata": {"k": "v" * 513}}, 400, "metadata.k"),
        ({"reasoning": {"effort": "huge"}}, 400, "reasoning.effort"),
        ({"input": "long " * 200}, 400, "input_tokens"),
    ],
)
def test_refusals(change, status, param):
    client = Client(FakeEngine())
    for stream in (False, True):
        reply = client.post("/v1/responses", {"model": "fake", "input": "Hi", "stream": stream} | change)
        assert reply.status_code == status, reply.text
        error = reply.json()["error"]
        assert (error["param"], error["code"]) == (param, status), error


def test_an_error_in_the_stream_is_its_last_event():
    engine = FakeEngine()
    engine.fail_after = 2
    client = Client(engine)
    data = events(client.post("/v1/responses", {"model": "fake", "input": "Hi", "stream": True}))
    assert data[-1]["type"] == "response.failed" and data[-2]["type"] == "response.output_item.done"
    failed = data[-1]["response"]
    assert failed["status"] == "failed" and failed["error"]["code"] == "server_error" and "secret" not in str(failed)
    assert failed["output"][0]["content"][0]["text"] == "Hello wörld" and failed["output"][0]["status"] == "incomplete"
    assert client.get(f"/v1/responses/{failed['id']}").json() == failed
    engine.fail_after = 0
    assert client.post("/v1/responses", {"model": "fake", "input": "Hi"}).status_code == 500
