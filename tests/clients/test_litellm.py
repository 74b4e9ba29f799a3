"""`litellm` against a live server, by both of its names for servers like this one."""

import json
import os
from typing import Any

import pytest
from clients import tasks

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks the network
litellm = pytest.importorskip("litellm", reason="litellm is not installed (minivllm[clients])")

ASK = [{"role": "user", "content": "What is the capital of France?"}]
MULTIPLY = tasks.multiply_function("integer")


def ask(server: Any, provider: str, **fields: Any) -> Any:
    return litellm.completion(
        model=f"{provider}/smollm2", api_base=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=40, **fields
    )


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_whole_and_streamed(server: Any, provider: str) -> None:
    whole = ask(server, provider, messages=ASK)
    assert "Paris" in whole.choices[0].message.content and whole.usage.completion_tokens > 0
    chunks = list(ask(server, provider, messages=ASK, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content


def test_errors_are_its_own(server: Any) -> None:
    with pytest.raises(litellm.BadRequestError, match="top_p"):
        ask(server, "openai", messages=ASK, top_p=7)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/other", api_base=f"{server.url}/v1", api_key="none", messages=ASK)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_tool_is_called_and_answered(server: Any, stream: bool) -> None:
    history: list[Any] = [{"role": "user", "content": "Multiply 17 by 23."}]
    named = {"type": "function", "function": {"name": "multiply"}}
    fields: dict[str, Any] = {"tools": [MULTIPLY], "tool_choice": named, "parallel_tool_calls": False, "stream": stream}
    reply = ask(server, "openai", messages=history, **fields)
    if stream:
        reply = litellm.stream_chunk_builder(list(reply), messages=history)
    assert reply.choices[0].finish_reason == "tool_calls"
    (call,) = reply.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, arguments) == ("multiply", {"a": 17, "b": 23})
    history += [reply.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": str(17 * 23)}]
    assert ask(server, "openai", messages=history).choices[0].message.content
