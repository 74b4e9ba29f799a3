"""`AttentionBackend`: what the model runner and the attention layers ask of a way to do attention."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.attention.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """How one layer scores keys. What a back end cannot do, it refuses by the model's spec."""

    scale: float
    window: int = 0  # tokens that it looks back, the own one included; 0: all
    soft_cap: float = 0.0  # 0: none
    sinks: Tensor | None = None  # [num_heads]
    alibi_slopes: Tensor | None = None  # fp32 [num_heads]
    k_scale: float = 1.0  # a cache in floats of 8 bits holds keys divided by it,
    v_scale: float = 1.0  # and values by this


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
    def kv_shape(self, num_blocks: int, block_size: int, dtype: torch.dtype) -> tuple[int, ...]:
        """Shape of the cache of one layer, kept in `dtype`; its second dimension is the block."""

    @abstractmethod
    def prepare(self, metadata: AttentionMetadata) -> AttentionMetadata:
        """Once a step, before the first layer: add what this back end needs to know."""

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, metadata: AttentionMetadata, form: AttentionForm) -> Tensor:
        """Store k and v, then attend. q: [num_tokens, num_heads, head_dim], k and v with num_kv_heads; like q comes back."""
