"""The whole answer as the fold of its events, so that streamed and whole replies cannot disagree."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from minivllm.messages.output import Logprob
from minivllm.text.parsers.events import ChatEvent, TextDelta


@dataclass(slots=True)
class ChatAnswer:
    """One choice, complete."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, event: ChatEvent) -> None:
        if isinstance(event, TextDelta):
            self.text += event.text
            self.token_ids += event.token_ids
            if event.logprobs is not None:
                self.logprobs = (self.logprobs or []) + event.logprobs
        else:
            self.finish_reason, self.stop_reason = event.reason, event.stop_reason


async def fold(events: AsyncGenerator[ChatEvent, None]) -> list[ChatAnswer]:
    """The answers in order of their index."""
    answers: dict[int, ChatAnswer] = {}
    async with aclosing(events):
        async for event in events:
            answers.setdefault(event.index, ChatAnswer(event.index)).add(event)
    return [answers[index] for index in sorted(answers)]
