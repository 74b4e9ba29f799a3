"""Attention whose cache keeps one vector a token, which serves all heads as key and as value."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.attention.backend import AttentionForm
from minivllm.model.attention.metadata import AttentionMetadata
from minivllm.model.attention.paged import KV_DTYPES, PagedBackend

# Elements of a vector that fit into a GPU's registers.
MAX_GPU_RANK, MAX_GPU_RANK_FLOAT32 = 512, 128


class LatentBackend(PagedBackend):
    name = "latent"

    def __init__(self, spec: ModelSpec, ops: Ops):
        super().__init__(spec, ops)
        assert spec.latent is not None
        self._rank = spec.latent.kv_rank
        self._width = spec.latent.kv_rank + spec.latent.rope_dim
        self._latent_attention = ops.attention.latent_attention

    @staticmethod
    def refusal(spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, device: str) -> str | None:
        if spec.latent is None:
            return "the model has keys and values"
        most = MAX_GPU_RANK_FLOAT32 if torch.float32 in (dtype, kv_dtype) else MAX_GPU_RANK
        if device.startswith("cuda") and spec.latent.kv_rank > most:
            kind = " in float32" if spec.latent.kv_rank <= MAX_GPU_RANK else ""
            return f"vectors of {spec.latent.kv_rank} elements{kind} do not fit into a GPU's registers"
        return None if kv_dtype in KV_DTYPES else f"it keeps no {str(kv_dtype).removeprefix('torch.')} cache"

    def kv_shape(self, num_blocks: int, block_size: int, dtype: torch.dtype) -> tuple[int, ...]:
        return 1, num_blocks, 1, block_size, self._width

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, metadata: AttentionMetadata, form: AttentionForm) -> Tensor:
        """k and v are the same. Back comes a vector for each head of q, of the elements that are no part of the turned key."""
        self._write_kv(k, v, kv.expand(2, *kv.shape[1:]), metadata.slot_mapping)
        sequences = metadata.block_tables, metadata.query_start, metadata.context_lens
        return self._latent_attention(q, kv, *sequences, form.scale, self._rank)
