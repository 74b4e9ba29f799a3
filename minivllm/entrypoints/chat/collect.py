"""The whole answer as the fold of its events, so that streamed and whole replies cannot disagree."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from minivllm.messages.output import Logprob
from minivllm.text.parsers.events import ChatEvent, Finish, ReasoningDelta, TextDelta, ToolArgsDelta, ToolCallStart


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str = ""  # JSON, unless the call is incomplete


@dataclass(slots=True)
class ChatAnswer:
    """One choice, complete."""

    index: int
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, event: ChatEvent) -> None:
        if isinstance(event, Finish):
            self.finish_reason, self.stop_reason = event.reason, event.stop_reason
            return
        if isinstance(event, TextDelta):
            self.text += event.text
        elif isinstance(event, ReasoningDelta):
            self.reasoning += event.text
        elif isinstance(event, ToolCallStart):
            self.tool_calls.append(ToolCall(event.id, event.name))
        elif isinstance(event, ToolArgsDelta):
            self.tool_calls[event.call].arguments += event.text
        self.token_ids += event.token_ids
        if event.logprobs is not None:
            self.logprobs = (self.logprobs or []) + event.logprobs


async def fold(events: AsyncGenerator[ChatEvent, None]) -> list[ChatAnswer]:
    """The answers in order of their index."""
    answers: dict[int, ChatAnswer] = {}
    async with aclosing(events):
        async for event in events:
            answers.setdefault(event.index, ChatAnswer(event.index)).add(event)
    return [answers[index] for index in sorted(answers)]
