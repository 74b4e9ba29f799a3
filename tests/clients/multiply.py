"""A tool for agents, in the forms in which clients describe tools."""

from typing import Any


def schema(numbers: str) -> dict[str, Any]:
    """Of its arguments. numbers: integer or number."""
    return {
        "type": "object",
        "properties": {"a": {"type": numbers}, "b": {"type": numbers}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }


def function(numbers: str) -> dict[str, Any]:
    """As OpenAI's chat completions have it."""
    function = {"name": "multiply", "description": "Multiply two numbers", "strict": True, "parameters": schema(numbers)}
    return {"type": "function", "function": function}
