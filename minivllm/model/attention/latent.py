"""Attention whose cache keeps one vector a token, which serves all heads as key and as value."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.attention.backend import AttentionForm
from minivllm.model.attention.metadata import AttentionMetadata
from minivllm.model.attention.paged import KV_DTYPES, PagedBackend


class LatentBackend(PagedBackend):
    """Values are the first elements of what comes back; the rest, of the keys' turned part, is of no use."""

    name = "latent"

    def __init__(self, spec: ModelSpec, ops: Ops):
        super().__init__(spec, ops)
        assert spec.latent is not None
        self._width = spec.latent.kv_rank + spec.latent.rope_dim

    @staticmethod
    def refusal(spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, device: str) -> str | None:
        if spec.latent is None:
            return "the model has keys and values"
        if device.startswith("cuda"):
            return "there is no kernel for a GPU yet that takes vectors of this size"
        return None if kv_dtype in KV_DTYPES else f"it keeps no {str(kv_dtype).removeprefix('torch.')} cache"

    def kv_shape(self, num_blocks: int, block_size: int, dtype: torch.dtype) -> tuple[int, ...]:
        return 1, num_blocks, 1, block_size, self._width

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, metadata: AttentionMetadata, form: AttentionForm) -> Tensor:
        """k and v are the same."""
        return super().forward(q, k, v, kv.expand(2, *kv.shape[1:]), metadata, form)
