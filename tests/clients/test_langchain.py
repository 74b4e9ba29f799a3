"""LangChain's `ChatOpenAI` against a live server: answers, structured answers, and an agent loop with a tool."""

from typing import Any

import pytest
from clients import tasks

langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed (minivllm[clients])")
messages = pytest.importorskip("langchain_core.messages")
tools = pytest.importorskip("langchain_core.tools")

FOLLOW_UP = "So, what is it? Answer in one English sentence, without JSON."  # small models need to be told


multiply, get_weather = tools.tool(tasks.multiply), tools.tool(tasks.get_weather)


def model(server: Any, name: str) -> Any:
    return langchain_openai.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", model=name, temperature=0, max_tokens=40, max_retries=0
    )


def test_whole_and_streamed(server: Any) -> None:
    chat = model(server, "smollm2")
    whole = chat.invoke("What is the capital of France?")
    assert "Paris" in whole.content and whole.usage_metadata["output_tokens"] > 0
    chunks = list(chat.stream("What is the capital of France?", stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == whole.content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_answer(server: Any, method: str) -> None:
    chat = model(server, "smollm2").with_structured_output(tasks.Answer, method=method)
    assert chat.invoke("What is the capital of France?").capital == "Paris"


def run_agent(chat: Any, first: Any, tool: Any, question: str) -> tuple[list[dict[str, Any]], str]:
    """Its calls, and its answer to their results. `first` is the model with the tool, for the first turn."""
    history = [messages.HumanMessage(question)]
    calls = []
    for turn in range(3):
        reply = (chat if turn else first).invoke(history)
        history.append(reply)
        if not reply.tool_calls:
            return calls, reply.content
        for call in reply.tool_calls:
            calls.append(call["args"])
            history.append(tool.invoke(call))
        history.append(messages.HumanMessage(FOLLOW_UP))
    raise AssertionError(f"calls without end: {calls}")


def test_agent_that_must_call(server: Any) -> None:
    chat = model(server, "smollm2")
    first = chat.bind_tools([multiply], tool_choice="multiply", strict=True, parallel_tool_calls=False)
    calls, answer = run_agent(chat, first, multiply, "Multiply 17 by 23.")
    assert calls == [{"a": 17, "b": 23}] and answer


def test_agent_that_decides(qwen: Any) -> None:
    chat = model(qwen, "qwen")
    calls, answer = run_agent(
        chat, chat.bind_tools([get_weather], parallel_tool_calls=False), get_weather, "What is the weather in Paris?"
    )
    assert calls == [{"city": "Paris"}] and "31" in answer
