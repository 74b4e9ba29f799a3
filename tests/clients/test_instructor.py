"""`instructor` against a live server: answers as Python objects, by a schema, by a tool, and streamed."""

from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

instructor = pytest.importorskip("instructor", reason="instructor is not installed (minivllm[clients])")

ASK: Any = [{"role": "user", "content": "What is the capital of France, and is it in Europe?"}]


class Answer(BaseModel):
    capital: Literal["Berlin", "Paris", "Rome"]
    in_europe: bool


class Multiply(BaseModel):
    """Multiply two numbers."""

    a: int
    b: int


class Product(BaseModel):
    product: int


@pytest.mark.parametrize("mode", ["JSON_SCHEMA", "TOOLS", "TOOLS_STRICT"])
def test_answer_is_an_object(server: Any, mode: str) -> None:
    sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    client = instructor.from_openai(sdk, mode=instructor.Mode[mode])
    fields: Any = {"model": "smollm2", "messages": ASK, "temperature": 0, "max_tokens": 60}
    assert client.chat.completions.create(response_model=Answer, max_retries=0, **fields).capital == "Paris"
    *_, last = client.chat.completions.create_partial(response_model=Answer, **fields)
    assert last.capital == "Paris"


def test_tool_is_called_and_answered(server: Any) -> None:
    """The tool's arguments are the first object; the second is the answer to what it returned."""
    sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    client = instructor.from_openai(sdk, mode=instructor.Mode.TOOLS)
    history: list[Any] = [{"role": "user", "content": "Multiply 17 by 23."}]
    fields: Any = {"model": "smollm2", "temperature": 0, "max_tokens": 60, "max_retries": 0}
    called, raw = client.chat.completions.create_with_completion(response_model=Multiply, messages=history, **fields)
    assert (called.a, called.b) == (17, 23)
    message = raw.choices[0].message
    history.append(message.model_dump(include={"role", "content", "tool_calls"}))
    history.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": str(called.a * called.b)})
    answer = client.chat.completions.create(response_model=Product, messages=history, **fields)
    assert isinstance(answer.product, int)  # a model of this size cannot read it off
