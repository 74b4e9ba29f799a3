"""What pooling requests bring: raw numbers from the core (`Pooled`), and the outputs that users get."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Pooled(msgspec.Struct, array_like=True):
    """float32 numbers in the machine's order: one row, or with two entries in `shape` one row a token."""

    data: bytes
    shape: list[int]

    def tolist(self) -> Any:
        """Numbers in lists, nested as the shape says."""
        return memoryview(self.data).cast("f", self.shape).tolist()


@dataclass(slots=True)
class PoolingOutput:
    data: Pooled


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    score: float


@dataclass(slots=True)
class PoolingRequestOutput(Generic[T]):
    request_id: str
    outputs: T
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


EmbeddingRequestOutput = PoolingRequestOutput[EmbeddingOutput]
ClassificationRequestOutput = PoolingRequestOutput[ClassificationOutput]
ScoringRequestOutput = PoolingRequestOutput[ScoringOutput]
