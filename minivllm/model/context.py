"""`ForwardContext`: what one forward pass knows besides its tokens; made by the model runner, read by attention layers."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from minivllm.model.attention.backend import AttentionBackend
from minivllm.model.attention.metadata import AttentionMetadata


@dataclass(slots=True)
class ForwardContext:
    backend: AttentionBackend
    metadata: AttentionMetadata
    kv_caches: Sequence[Tensor]  # one per layer, each of the back end's kv_shape
    token_types: Tensor | None = None  # int64 [num_tokens], where the model has types: 1 in the second text of a pair
