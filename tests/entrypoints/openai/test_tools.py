"""Tools and thoughts at `/v1/chat/completions` on a fake engine: exact messages and deltas, and what is refused."""

import re
from typing import Any

import pytest
from fakes import Client, FakeEngine

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {"city": {}}}},
}
NOW = {"type": "function", "function": {"name": "now"}}
CALL = ["<tool_call>\n", '{"name": "get_', 'weather", "arguments": {"city": "P', 'aris"}}', "\n</tool_call>"]
ANSWER = [
    "<th",
    "ink>",
    "Hm, ",
    "hm.",
    "\n</think>\n\n",
    "Let me",
    " see.\n",
    *CALL,
    '\n<tool_call>{"name": "now"}</tool_call>',
]
TEMPLATE = "{{ tools | tojson }}{# <tool_call> </think> #}{{ enable_thinking }}{{ reasoning_effort }}"


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(script=ANSWER, max_model_len=1000)
    engine.tokenizer.chat_template = TEMPLATE
    return engine


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    return Client(engine)


def ask(client: Client, **fields: Any) -> dict[str, Any]:
    reply = client.post(CHAT, {"messages": HI, "tools": [WEATHER, NOW]} | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def deltas(client: Client, **fields: Any) -> tuple[list[dict[str, Any]], str]:
    """The deltas of a streamed reply behind the first, and its finish reason."""
    *chunks, done = client.events(CHAT, {"messages": HI, "tools": [WEATHER, NOW]} | fields)
    assert done == "[DONE]" and chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    choices = [chunk["choices"][0] for chunk in chunks[1:] if chunk["choices"]]
    assert all(choice["finish_reason"] is None and choice["delta"] for choice in choices[:-1])
    return [choice["delta"] for choice in choices[:-1]], choices[-1]["finish_reason"]


def test_whole_answer(client: Client) -> None:
    body = ask(client)
    message = body["choices"][0]["message"]
    ids = [call.pop("id") for call in message["tool_calls"]]
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", each) for each in ids) and len(set(ids)) == 2
    assert message == {
        "role": "assistant",
        "content": "Let me see.",
        "refusal": None,
        "reasoning_content": "Hm, hm.",
        "reasoning": "Hm, hm.",
        "tool_calls": [
            {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
            {"type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    }
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_deltas_are_those_of_openai(client: Client) -> None:
    parts, reason = deltas(client)
    assert reason == "tool_calls"
    ids = [part["tool_calls"][0].pop("id") for part in parts if "id" in part.get("tool_calls", [{}])[0]]
    assert len(set(ids)) == 2
    start = {"index": 0, "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    second = {"index": 1, "type": "function", "function": {"name": "now", "arguments": ""}}
    assert parts == [
        {"reasoning_content": "Hm,", "reasoning": "Hm,"},
        {"reasoning_content": " hm.", "reasoning": " hm."},
        {"content": "Let me"},
        {"content": " see."},
        {"tool_calls": [start]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "P'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": 'aris"}'}}]},
        {"tool_calls": [second]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
    ]


def test_logprobs_are_those_of_the_tokens(client: Client, engine: FakeEngine) -> None:
    fields = {"logprobs": True, "return_token_ids": True}
    choice = ask(client, **fields)["choices"][0]
    events = client.events(CHAT, {"messages": HI, "tools": [WEATHER, NOW]} | fields)[:-1]
    streamed = [chunk["choices"][0] for chunk in events]
    ids = [engine.tokenizer.id_of(word) for word in ANSWER]
    assert choice["token_ids"] == [token for part in streamed for token in part.get("token_ids", [])] == ids
    for found in (
        choice["logprobs"]["content"],
        [e for part in streamed if part["logprobs"] for e in part["logprobs"]["content"]],
    ):
        assert [entry["token"] for entry in found] == ANSWER


def test_one_call_only(client: Client, engine: FakeEngine) -> None:
    reply = ask(client, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in reply["choices"][0]["message"]["tool_calls"]] == ["get_weather"]
    assert reply["usage"]["completion_tokens"] == 11  # the answer ends where the call does
    parts, reason = deltas(client, parallel_tool_calls=False)
    assert reason == "tool_calls" and [part["tool_calls"][0]["index"] for part in parts if "tool_calls" in part] == [0, 0, 0]
    # A call too many that is cut off is none of the client's concern.
    engine.script = [*CALL, *CALL]
    choice = ask(client, parallel_tool_calls=False, max_tokens=7)["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert ask(client, max_tokens=8)["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("length", [8, 9, 10])
def test_cut_call(client: Client, length: int) -> None:
    choice = ask(client, max_tokens=length)["choices"][0]
    parts, reason = deltas(client, max_tokens=length)
    assert choice["finish_reason"] == reason == "length"
    assert "".join(part.get("content", "") for part in parts) == choice["message"]["content"]


def test_without_tools_calls_are_text(client: Client, engine: FakeEngine) -> None:
    for fields in ({"tools": None}, {"tool_choice": "none"}, {"tools": []}):
        choice = ask(client, **fields)["choices"][0]
        assert choice["message"]["content"].startswith("Let me see.\n<tool_call>") and choice["finish_reason"] == "stop"
        assert "tool_calls" not in choice["message"]
        assert engine.requests[-1][0]["prompt"].startswith("null")


def test_thoughts_can_be_left_out_or_off(client: Client, engine: FakeEngine) -> None:
    body = ask(client, include_reasoning=False)
    assert not body["choices"][0]["message"].keys() & {"reasoning", "reasoning_content"}
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert not any("reasoning" in part for part in deltas(client, include_reasoning=False)[0])
    ask(client, chat_template_kwargs={"enable_thinking": False})
    assert engine.requests[-1][0]["prompt"].endswith("]False")
    ask(client, reasoning_effort="none")
    assert engine.requests[-1][0]["prompt"].endswith("]Falsenone")
    raw = Client(engine, reasoning_parser="none")
    assert ask(raw)["choices"][0]["message"]["content"].startswith("<think>Hm, hm.\n</think>")


def test_templates_see_tools_without_our_fields(client: Client, engine: FakeEngine) -> None:
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    ask(client, tools=[strict, NOW])
    shown = engine.requests[-1][0]["prompt"]
    assert shown.startswith('[{"type": "function", "function": {"name": "get_weather", "description": "Weather"')
    assert "strict" not in shown and '"name": "now", "parameters": {"type": "object", "properties": {}}}' in shown


def test_choices_become_forms(client: Client, engine: FakeEngine) -> None:
    def forms(**fields: Any) -> Any:
        ask(client, **fields)
        return engine.requests[-1][1].structured_outputs

    assert forms() is None and forms(tool_choice="auto") is None
    required = forms(tool_choice="required")
    assert required.origin == "tools" and "get_weather" in required.structural_tag and '\\"now' in required.structural_tag
    start, end = engine.tokenizer.encode("<think>"), engine.tokenizer.encode("</think>")
    assert (required.reasoning_start, required.reasoning_end) == (start, end)
    named = forms(tool_choice={"type": "function", "function": {"name": "now"}})
    assert "get_weather" not in named.structural_tag
    allowed = {"mode": "required", "tools": [NOW]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert forms(tool_choice=choice, parallel_tool_calls=False) == named != forms(tool_choice=choice)
    free = forms(tools=None, response_format={"type": "json_object"})
    assert free.json_object and free.reasoning_end == end


def test_functions_are_the_older_tools(client: Client, engine: FakeEngine) -> None:
    fields = {"tools": None, "functions": [WEATHER["function"], NOW["function"]]}
    choice = ask(client, **fields)["choices"][0]
    assert choice["message"]["function_call"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]
    parts, reason = deltas(client, **fields)
    assert reason == "function_call"
    calls = [part["function_call"] for part in parts if "function_call" in part]
    assert calls[0] == {"name": "get_weather", "arguments": ""}
    assert "".join(call["arguments"] for call in calls) == '{"city": "Paris"}'
    ask(client, **fields, function_call={"name": "now"})
    assert "get_weather" not in engine.requests[-1][1].structured_outputs.structural_tag


FUNCTION = WEATHER["function"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 129}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search", "function": FUNCTION}]}, "tools[0].type"),
        ({"tools": "x"}, "tools"),
        ({"tools": [{"function": {"name": f"f{n}"}} for n in range(129)]}, "tools"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
        ({"tools": [{"function": {"name": "f", "parameters": {"type": "string"}}}]}, "tools[0].function.parameters"),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "text"}}}}}]},
            "tools[0].function.parameters.properties.a.type",
        ),
        ({"tools": [{"function": {"name": "f", "parameters": {"required": "a"}}}]}, "tools[0].function.parameters.required"),
        ({"tools": [{"function": {"name": "f", "parameters": {"x": "y" * 70_000}}}]}, "tools[0].function.parameters"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": [FUNCTION, FUNCTION]}, "functions[1].name"),
        ({"functions": [FUNCTION], "tools": [NOW]}, "functions"),
        ({"functions": [FUNCTION], "function_call": {"name": "x"}}, "function_call"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
    ],
)
def test_refusals(client: Client, fields: dict[str, Any], param: str) -> None:
    reply = client.post(CHAT, {"messages": HI} | fields)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_auto_tool_choice_can_be_off(engine: FakeEngine) -> None:
    client = Client(engine, enable_auto_tool_choice=False)
    reply = client.post(CHAT, {"messages": HI, "tools": [NOW]})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "tool_choice"
    ask(client, tool_choice="required")
    ask(client, tool_choice="none")


def test_tools_for_a_template_that_does_not_know_them(engine: FakeEngine) -> None:
    engine.tokenizer.chat_template = FakeEngine().tokenizer.chat_template
    client = Client(engine)
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    turns = [{"role": "system", "content": "S"}, *HI, {"role": "assistant", "tool_calls": [call]}]
    answer = ask(client, messages=[*turns, {"role": "tool", "content": "noon", "tool_call_id": "1"}], tools=[NOW])
    assert [each["function"]["name"] for each in answer["choices"][0]["message"]["tool_calls"]] == ["get_weather", "now"]
    prompt = engine.requests[-1][0]["prompt"]
    assert prompt.startswith("<|system|>S\n\nYou can use these tools") and '{"name": "now", "parameters"' in prompt
    assert '<|assistant|><tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|end|><|tool|>noon<|end|>' in prompt
