"""`ChatEvent`: what a chat answer consists of, whatever the wire format. Made by `ChatSession`, read by the codecs."""

from dataclasses import dataclass, field

from minivllm.messages.output import Logprob


@dataclass(slots=True)
class Delta:
    """Something new in choice `index`. Each token of the answer comes with exactly one delta, in order: the first one that
    was made when the token arrived."""

    index: int
    token_ids: list[int] = field(default_factory=list, kw_only=True)
    logprobs: list[dict[int, Logprob]] | None = field(default=None, kw_only=True)  # one dict a token of `token_ids`


@dataclass(slots=True)
class TextDelta(Delta):
    """`text` may be empty while tokens wait for the rest of a character, stop string or marker."""

    text: str


@dataclass(slots=True)
class ReasoningDelta(Delta):
    """What the model thinks before it answers."""

    text: str


@dataclass(slots=True)
class ToolCallStart(Delta):
    """The model calls a tool: its `call`-th one, counted from 0. The arguments follow."""

    call: int
    id: str
    name: str


@dataclass(slots=True)
class ToolArgsDelta(Delta):
    """More of the JSON text of the arguments of call `call`."""

    call: int
    text: str


@dataclass(slots=True)
class Finish:
    """The last event of choice `index`."""

    index: int
    reason: str  # "stop", "length", "tool_calls" (the answer ends with complete calls), "abort"
    stop_reason: int | str | None = None
    num_reasoning_tokens: int = 0


ChatEvent = TextDelta | ReasoningDelta | ToolCallStart | ToolArgsDelta | Finish
