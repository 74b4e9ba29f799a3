"""What clients are asked for: an answer as an object, and tools, in the forms in which clients describe them."""

from typing import Any, Literal

from pydantic import BaseModel


class Answer(BaseModel):
    """About a country."""

    capital: Literal["Berlin", "Paris", "Rome"]
    in_europe: bool


def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    return f"{city}: 31 degrees, storm"


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def multiply_schema(numbers: str) -> dict[str, Any]:
    """Of its arguments. numbers: integer or number."""
    return {
        "type": "object",
        "properties": {"a": {"type": numbers}, "b": {"type": numbers}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }


def multiply_function(numbers: str) -> dict[str, Any]:
    """As OpenAI's chat completions have it."""
    function = {"name": "multiply", "description": multiply.__doc__, "strict": True, "parameters": multiply_schema(numbers)}
    return {"type": "function", "function": function}
