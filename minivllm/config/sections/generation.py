"""What the model's own files say about generating: when it ends and with which defaults. Part of `EngineConfig`."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationConfig:
    """`defaults` holds those of temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens that the model sets.

    The tokenizer knows the ids below `num_tokens`; the model's vocabulary may be padded beyond them. None: not known.
    """

    eos_token_ids: tuple[int, ...] = ()
    num_tokens: int | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
