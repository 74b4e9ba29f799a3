"""What the model's own files say about generating: when it ends and with which defaults. Part of `EngineConfig`."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationConfig:
    """`defaults` holds those of temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens that the model sets."""

    eos_token_ids: tuple[int, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
