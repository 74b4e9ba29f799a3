"""`ChatEvent`: what a chat answer consists of, whatever the wire format. Made by `ChatSession`, read by the codecs."""

from dataclasses import dataclass, field

from minivllm.messages.output import Logprob


@dataclass(slots=True)
class TextDelta:
    """New text of choice `index`. `text` may be empty while tokens wait for the rest of a character or stop string."""

    index: int
    text: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None  # one dict a token of `token_ids`


@dataclass(slots=True)
class Finish:
    """The last event of choice `index`."""

    index: int
    reason: str  # "stop", "length", "abort"
    stop_reason: int | str | None = None


ChatEvent = TextDelta | Finish
