"""Scores of pairs of texts: which belong together, and the similarity of two embeddings. Used by the server and `LLM.score`."""

import math
from collections.abc import Sequence
from typing import TypeVar

from minivllm.config.sections.pooling import PoolingConfig
from minivllm.errors import ClientError

T = TypeVar("T")


def can_score(config: PoolingConfig | None) -> bool:
    """By cosine similarity, or as a cross-encoder with one class."""
    return config is not None and (config.task == "embed" or len(config.labels) == 1)


def pair_up(first: Sequence[T], second: Sequence[T], param: str) -> list[tuple[T, T]]:
    """1:1, 1:N or N:N; ClientError about the field `param` otherwise."""
    if not first or not second:
        raise ClientError("At least one text element must be given", param=param)
    if len(first) not in (1, len(second)):
        raise ClientError("Input lengths must be either 1:1, 1:N or N:N", param=param)
    return [(first[index if len(first) > 1 else 0], other) for index, other in enumerate(second)]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    def dot(x: Sequence[float], y: Sequence[float]) -> float:
        return sum(map(float.__mul__, x, y))

    return dot(a, b) / max(math.sqrt(dot(a, a) * dot(b, b)), 1e-12)
