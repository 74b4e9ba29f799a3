"""Agent loops with the `openai` package: tools are called, really run, and their results answered; streamed and not."""

import json
from typing import Any

import openai
import pytest
from clients import tasks

MULTIPLY = tasks.multiply_function("number")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city"}},
            "required": ["city"],
        },
    },
}
RUN = {"multiply": lambda a, b: str(int(a * b)), "get_weather": tasks.get_weather}
TOOLS = [WEATHER, MULTIPLY]


def run_agent(
    sdk: openai.OpenAI, question: str, follow_up: str, stream: bool, then: str = "auto", **options: Any
) -> tuple[list[Any], str]:
    """The calls that the model made to answer the question, and its answer to what is asked about their results.

    `then`: the tool choice once a tool was called.
    """
    messages: list[Any] = [{"role": "user", "content": question}]
    called: list[Any] = []
    while True:
        fields = {"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 40} | options
        if stream:
            with sdk.chat.completions.stream(**fields) as events:
                choice = events.get_final_completion().choices[0]
        else:
            choice = sdk.chat.completions.create(**fields).choices[0]
        calls = choice.message.tool_calls
        if not calls:
            assert choice.finish_reason in ("stop", "length")
            return called, choice.message.content
        assert choice.finish_reason == "tool_calls" and not called, called
        messages.append(choice.message.model_dump(include={"role", "content", "tool_calls"}))
        for call in calls:
            arguments = json.loads(call.function.arguments)
            called.append((call.function.name, arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": RUN[call.function.name](**arguments)})
        messages.append({"role": "user", "content": follow_up})
        options["tool_choice"] = then


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_model_calls_a_tool_and_answers_from_its_result(qwen: Any, stream: bool) -> None:
    follow_up = "So, how is the weather in Paris? Answer in one English sentence, without JSON."
    options = {"model": "qwen", "tools": [WEATHER], "parallel_tool_calls": False}
    called, answer = run_agent(qwen.openai(), "What is the weather in Paris?", follow_up, stream, **options)
    assert called == [("get_weather", {"city": "Paris"})]
    assert "31" in answer and "Paris" in answer


def test_required_tool(qwen: Any) -> None:
    follow_up = "So, what is 17 times 23? Answer in one English sentence, without JSON."
    options = {"model": "qwen", "tool_choice": "required", "parallel_tool_calls": False}
    called, answer = run_agent(qwen.openai(), "What is 17 times 23?", follow_up, True, "none", **options)
    assert called == [("multiply", {"a": 17, "b": 23})] and "391" in answer


def test_named_tool_and_plain_answers(qwen: Any) -> None:
    sdk = qwen.openai()
    fields: dict[str, Any] = {"model": "qwen", "tools": TOOLS, "temperature": 0, "max_tokens": 32}
    hello = [{"role": "user", "content": "Write one sentence about the sea."}]
    choice = sdk.chat.completions.create(messages=hello, tool_choice="none", **fields).choices[0]
    assert choice.message.tool_calls is None and "sea" in choice.message.content.lower()
    named = {"type": "function", "function": {"name": "get_weather"}}
    (call,) = sdk.chat.completions.create(messages=hello, tool_choice=named, **fields).choices[0].message.tool_calls
    assert call.function.name == "get_weather" and list(json.loads(call.function.arguments)) == ["city"]


def test_model_that_knows_nothing_of_tools(server: Any) -> None:
    """Its template has no place for them, and its calls are what the grammar makes of them; but the loop closes."""
    named = {"type": "function", "function": {"name": "multiply"}}
    options = {"model": "smollm2", "tool_choice": named}
    called, answer = run_agent(server.openai(), "Multiply 17 by 23.", "What is the result?", False, "none", **options)
    assert called == [("multiply", {"a": 17, "b": 23})] and answer


def test_streamed_calls_are_the_whole_ones(server: Any) -> None:
    sdk = server.openai()
    fields: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Weather in Rome and Oslo?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "temperature": 0,
        "max_tokens": 32,
    }
    whole = sdk.chat.completions.create(**fields).choices[0]
    calls: list[list[str]] = []
    for chunk in sdk.chat.completions.create(stream=True, **fields):
        (choice,) = chunk.choices
        for part in choice.delta.tool_calls or ():
            if part.id:
                assert part.index == len(calls)
                calls.append([part.function.name, ""])
            calls[part.index][1] += part.function.arguments
    assert choice.finish_reason == whole.finish_reason
    assert calls == [[call.function.name, call.function.arguments] for call in whole.message.tool_calls] != []
