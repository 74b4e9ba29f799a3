"""Messages to prompts: roles, content parts, tool calls."""

import asyncio

import pytest
from fakes import FakeTokenizer

from minivllm.entrypoints.chat.prompt import ChatPrompts, encode
from minivllm.entrypoints.chat.request import ChatRequest
from minivllm.errors import ClientError
from minivllm.messages.sampling_params import SamplingParams

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls %} {{ call.function.name }}({{ call.function.arguments.a }}){% endfor %}]{% endfor %}"
    "{% if tools %}tools={{ tools|length }}{% endif %}{% if flag %}flag={{ flag }}{% endif %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def render(*messages: dict, template: str = TEMPLATE, **fields) -> str:
    request = ChatRequest(messages=list(messages), sampling_params=SamplingParams(), **fields)
    prompt = asyncio.run(ChatPrompts(FakeTokenizer(), template).render(request))  # type: ignore[arg-type]
    return prompt["prompt"]


def test_roles_and_empty_turns():
    turns = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": ""}]
    assert render(*turns) == "[system:S][user:U][assistant:]>"
    assert render({"role": "assistant", "content": None}, {"role": "tool", "content": "T"}) == "[assistant:][tool:T]>"


def test_developer_is_system_unless_the_template_knows_it():
    assert render({"role": "developer", "content": "D"}) == "[system:D]>"
    assert render({"role": "developer", "content": "D"}, template=TEMPLATE + "{# developer #}") == "[developer:D]>"


def test_parts_become_one_text():
    parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}, {"type": "refusal", "refusal": "d"}]
    assert render({"role": "user", "content": parts}) == "[user:a\nb\nc\nd]>"


def test_tool_calls_have_objects_as_arguments():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 5}'}}
    assert render({"role": "assistant", "tool_calls": [call]}) == "[assistant: f(5)]>"
    assert call["function"] == {"name": "f", "arguments": '{"a": 5}'}


@pytest.mark.parametrize("arguments", ["{", "[1]", "5", "[" * 100_000])
def test_bad_arguments(arguments):
    with pytest.raises(ClientError) as refusal:
        render({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]})
    assert refusal.value.param == "messages[0].tool_calls[0].function.arguments"


def test_template_variables():
    text = render({"role": "user", "content": "U"}, tools=[{}], template_kwargs={"flag": "x"}, add_generation_prompt=False)
    assert text == "[user:U]tools=1flag=x"


def test_long_texts_are_encoded_as_short_ones():
    tokenizer = FakeTokenizer()
    assert asyncio.run(encode(tokenizer, "ab " * 10_000)) == tokenizer.encode("ab " * 10_000)  # type: ignore[arg-type]
