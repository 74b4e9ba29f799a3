"""`instructor` against a live server: answers as Python objects, by a schema, by a tool, and streamed."""

from typing import Any

import pytest
from clients.tasks import Answer
from pydantic import BaseModel

instructor = pytest.importorskip("instructor", reason="instructor is not installed (minivllm[clients])")

ASK: Any = [{"role": "user", "content": "What is the capital of France, and is it in Europe?"}]


class Multiply(BaseModel):
    """Multiply two numbers."""

    a: int
    b: int


class Product(BaseModel):
    product: int


@pytest.mark.parametrize("mode", ["JSON_SCHEMA", "TOOLS", "TOOLS_STRICT"])
def test_answer_is_an_object(server: Any, mode: str) -> None:
    client = instructor.from_openai(server.openai(), mode=instructor.Mode[mode])
    fields: Any = {"model": "smollm2", "messages": ASK, "temperature": 0, "max_tokens": 60}
    assert client.chat.completions.create(response_model=Answer, max_retries=0, **fields).capital == "Paris"
    *_, last = client.chat.completions.create_partial(response_model=Answer, **fields)
    assert last.capital == "Paris"


def test_tool_is_called_and_answered(server: Any) -> None:
    """The tool's arguments are the first object; the second is the answer to what it returned."""
    client = instructor.from_openai(server.openai(), mode=instructor.Mode.TOOLS)
    history: list[Any] = [{"role": "user", "content": "Multiply 17 by 23."}]
    fields: Any = {"model": "smollm2", "temperature": 0, "max_tokens": 60, "max_retries": 0}
    called, raw = client.chat.completions.create_with_completion(response_model=Multiply, messages=history, **fields)
    assert (called.a, called.b) == (17, 23)
    message = raw.choices[0].message
    history.append(message.model_dump(include={"role", "content", "tool_calls"}))
    history.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": str(called.a * called.b)})
    _, last = client.chat.completions.create_with_completion(response_model=Product, messages=history, **fields)
    # A model of this size cannot read the product off; but it is told of it.
    assert last.usage.prompt_tokens > raw.usage.prompt_tokens and last.choices[0].finish_reason == "tool_calls"
