"""The `openai` package against a live server: parsed answers, stream helpers, and the details that clients look at."""

import asyncio
from typing import Any

import openai
import pytest
from clients.tasks import Answer

FRANCE = [{"role": "user", "content": "What is the capital of France, and is it in Europe?"}]


@pytest.fixture(scope="module")
def sdk(server: Any) -> openai.OpenAI:
    return server.openai()


def test_parse(sdk: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "smollm2", "messages": FRANCE, "response_format": Answer, "temperature": 0}
    whole = sdk.chat.completions.parse(**fields).choices[0].message
    assert whole.parsed is not None and whole.parsed.capital == "Paris"
    with sdk.chat.completions.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0].message
    assert final.parsed == whole.parsed and {"content.delta", "content.done", "chunk"} <= set(kinds)


def test_parse_of_tool_arguments(sdk: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Answer, name="answer")
    named: Any = {"type": "function", "function": {"name": "answer"}}
    reply = sdk.chat.completions.parse(
        model="smollm2", messages=FRANCE, tools=[tool], tool_choice=named, parallel_tool_calls=False, temperature=0
    )
    (call,) = reply.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Answer)


def test_raw_stream_helper(sdk: openai.OpenAI) -> None:
    prompt = "1, 2, 3, 4,"
    whole = sdk.completions.create(model="smollm2", prompt=prompt, max_tokens=12, temperature=0)
    with sdk.completions.with_streaming_response.create(
        model="smollm2", prompt=prompt, max_tokens=12, temperature=0, stream=True
    ) as raw:
        assert raw.headers["content-type"].startswith("text/event-stream")
        text = "".join(chunk.choices[0].text for chunk in raw.parse())
    assert text == whole.choices[0].text and "5" in text


def test_fields_without_effect_are_taken_and_unknown_ones_named(sdk: openai.OpenAI) -> None:
    raw = sdk.chat.completions.with_raw_response.create(
        model="smollm2",
        messages=FRANCE,
        max_completion_tokens=2,
        service_tier="auto",
        metadata={"a": "b"},
        user="me",
        store=True,
        safety_identifier="s",
        prompt_cache_key="k",
        extra_body={"temprature": 1},
    )
    assert raw.headers["x-minivllm-ignored"] == "temprature"
    assert raw.parse().usage.completion_tokens == 2


def test_usage_counts_cached_tokens(sdk: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "smollm2", "prompt": "Bread is baked in the morning. " * 60, "max_tokens": 1}
    first = sdk.completions.create(**fields).usage
    *_, last = sdk.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    assert first and last.usage and last.usage.prompt_tokens == first.prompt_tokens
    assert last.usage.prompt_tokens_details.cached_tokens > first.prompt_tokens // 2


def test_bytes_of_parts_of_characters(sdk: openai.OpenAI) -> None:
    text = "🐢你ß!"
    fields: dict[str, Any] = {"model": "smollm2", "messages": FRANCE, "logprobs": True, "top_logprobs": 2}
    fields |= {"extra_body": {"structured_outputs": {"choice": [text]}}}
    choice = sdk.chat.completions.create(**fields).choices[0]
    assert choice.message.content == text
    content = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in content) == text.encode()
    assert any(token.token == "\ufffd" for token in content)  # a token that is less than a character
    chunks = [chunk.choices[0] for chunk in sdk.chat.completions.create(**fields, stream=True)]
    streamed = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content]
    assert [token.bytes for token in streamed] == [token.bytes for token in content]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == text


def test_async_client(server: Any) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
            calls = [
                sdk.chat.completions.create(model="smollm2", messages=FRANCE, temperature=0, max_tokens=8) for _ in range(8)
            ]
            return [reply.choices[0].message.content or "" for reply in await asyncio.gather(*calls)]

    answers = asyncio.run(ask())
    assert len(set(answers)) == 1 and "Paris" in answers[0]
