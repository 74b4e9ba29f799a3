"""`ChatRequest`: what every chat API asks of the engine, free of any wire format. Made by the codecs."""

from dataclasses import dataclass, field
from typing import Any

from minivllm.entrypoints.chat.tool_choice import ToolUse
from minivllm.messages.sampling_params import SamplingParams


@dataclass(slots=True, kw_only=True)
class ChatRequest:
    messages: list[dict[str, Any]]
    sampling_params: SamplingParams
    tools: list[dict[str, Any]] | None = None  # shown to the template
    tool_use: ToolUse | None = None  # which of them may be called; None: what looks like a call is text
    include_reasoning: bool = True  # False: the thoughts are made, counted and left out
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    add_special_tokens: bool = False  # templates write the special tokens themselves
    cache_salt: str | None = None
    priority: int = 0
    timeout: float | None = None  # seconds from arrival
