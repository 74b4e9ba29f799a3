"""The `anthropic` package against a live server: messages, stream helper, and a tool that is called, run and answered."""

from typing import Any

import anthropic
import pytest
from clients import tasks

HI: Any = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0}  # newer versions of the package have no argument of that name
MULTIPLY: Any = {"name": "multiply", "description": "Multiply two numbers", "input_schema": tasks.multiply_schema("integer")}


@pytest.fixture(scope="module")
def sdk(server: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def test_whole_and_streamed(sdk: anthropic.Anthropic) -> None:
    fields: Any = {"model": "smollm2", "max_tokens": 12, "extra_body": GREEDY, "messages": HI, "system": "Be brief."}
    whole = sdk.messages.create(**fields)
    assert "Paris" in whole.content[0].text
    with sdk.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text and (final.stop_reason, final.usage.output_tokens) == (
        whole.stop_reason,
        whole.usage.output_tokens,
    )
    counted = sdk.messages.count_tokens(model="smollm2", messages=HI, system="Be brief.").input_tokens
    assert counted == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_tool_is_called_and_answered(sdk: anthropic.Anthropic, stream: bool) -> None:
    messages: Any = [{"role": "user", "content": "Multiply 17 by 23."}]
    fields: Any = {"model": "smollm2", "max_tokens": 40, "extra_body": GREEDY, "tools": [MULTIPLY], "messages": messages}
    fields["tool_choice"] = {"type": "tool", "name": "multiply", "disable_parallel_tool_use": True}
    if stream:
        with sdk.messages.stream(**fields) as events:
            reply = events.get_final_message()
    else:
        reply = sdk.messages.create(**fields)
    (use,) = [block for block in reply.content if block.type == "tool_use"]
    assert (reply.stop_reason, use.name, use.input) == ("tool_use", "multiply", {"a": 17, "b": 23})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": str(use.input["a"] * use.input["b"])}
    messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
    answer = sdk.messages.create(**fields | {"tool_choice": {"type": "none"}})
    assert answer.stop_reason in ("end_turn", "max_tokens") and answer.content[0].text


def test_tool_runner(qwen: Any) -> None:
    """The package's own loop, with a model that decides by itself."""
    sdk = anthropic.Anthropic(base_url=qwen.url, api_key="none", max_retries=0)
    ask: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    tools = [anthropic.beta_tool(tasks.get_weather)]
    replies = list(sdk.beta.messages.tool_runner(model="qwen", max_tokens=40, extra_body=GREEDY, tools=tools, messages=ask))
    called = [block.input for reply in replies for block in reply.content if block.type == "tool_use"]
    assert called == [{"city": "Paris"}] and "31" in replies[-1].content[0].text
