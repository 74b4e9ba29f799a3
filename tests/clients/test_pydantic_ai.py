"""`pydantic_ai` against a live server: agents that call Python functions and answer with what came of it."""

from typing import Any

import pytest
from clients.tasks import Answer
from pydantic import BaseModel

pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim[openai] is not installed (minivllm[clients])")
capabilities = pytest.importorskip("pydantic_ai.capabilities")
models = pytest.importorskip("pydantic_ai.models.openai")
providers = pytest.importorskip("pydantic_ai.providers.openai")


def model(server: Any, name: str) -> Any:
    provider = providers.OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")
    settings = {"temperature": 0.0, "max_tokens": 40, "parallel_tool_calls": False}
    return models.OpenAIChatModel(name, provider=provider, settings=settings)


def test_text(server: Any) -> None:
    result = pydantic_ai.Agent(model(server, "smollm2")).run_sync("What is the capital of France?")
    assert "Paris" in result.output and result.usage.output_tokens > 0


@pytest.mark.parametrize("kind", ["ToolOutput", "NativeOutput"])
def test_answer_is_an_object(server: Any, kind: str) -> None:
    agent = pydantic_ai.Agent(model(server, "smollm2"), output_type=getattr(pydantic_ai, kind)(Answer))
    assert agent.run_sync("What is the capital of France?").output.capital == "Paris"


def test_agent_that_must_call(server: Any) -> None:
    """First there is only the tool, then only the answer: each is all that the grammar lets through."""
    called = []

    class Product(BaseModel):
        product: int

    async def only_later(context: Any, tools: Any) -> Any:
        return tools if called else []

    agent = pydantic_ai.Agent(
        model(server, "smollm2"), output_type=Product, capabilities=[capabilities.PrepareOutputTools(only_later)]
    )

    async def only_first(context: Any, tool: Any) -> Any:
        return None if called else tool

    @agent.tool_plain(prepare=only_first)
    def multiply(a: int, b: int) -> int:
        """Multiply two numbers."""
        called.append((a, b))
        return a * b

    result = agent.run_sync("Multiply 17 by 23.")
    returned = [part.content for message in result.all_messages() for part in message.parts if part.part_kind == "tool-return"]
    assert called == [(17, 23)] and 391 in returned and result.usage.requests == 2
