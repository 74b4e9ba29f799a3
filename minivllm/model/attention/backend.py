"""`AttentionBackend`: what the model runner and the attention layers ask of a way to do attention."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.attention.metadata import AttentionMetadata


class AttentionBackend(ABC):
    """One object serves all layers of a model."""

    name: str

    @abstractmethod
    def __init__(self, spec: ModelSpec, ops: Ops): ...

    @staticmethod
    @abstractmethod
    def refusal(spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, device: str) -> str | None:
        """Why this back end cannot serve the model; None if it can."""

    @abstractmethod
    def kv_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Shape of the cache of one layer; its second dimension is the block."""

    @abstractmethod
    def prepare(self, metadata: AttentionMetadata) -> AttentionMetadata:
        """Once a step, before the first layer: add what this back end needs to know."""

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Store k and v, then attend. q: [num_tokens, num_heads, head_dim], k and v with num_kv_heads; like q comes back."""
