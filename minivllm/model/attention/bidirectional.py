"""Attention of encoders: every token sees its whole text, and nothing is kept between steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.kernels.texts import Texts
from minivllm.model.attention.backend import AttentionBackend, AttentionForm
from minivllm.model.attention.metadata import AttentionMetadata


@dataclass(slots=True)
class BidirectionalMetadata(AttentionMetadata):
    texts: Texts


class BidirectionalBackend(AttentionBackend):
    name = "bidirectional"

    def __init__(self, spec: ModelSpec, ops: Ops):
        self._attend = ops.attention.whole_attention

    @staticmethod
    def refusal(spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, device: str) -> str | None:
        return "it is for encoders" if spec.encoder is None else None

    def kv_shape(self, num_blocks: int, block_size: int, dtype: torch.dtype) -> tuple[int, ...]:
        return 2, num_blocks, 0, block_size, 0

    def prepare(self, metadata: AttentionMetadata) -> BidirectionalMetadata:
        of = metadata
        return BidirectionalMetadata(of.query_start, of.context_lens, of.block_tables, of.slot_mapping, Texts(of.query_start))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, metadata: AttentionMetadata, form: AttentionForm) -> Tensor:
        """A window reaches as far forward as back."""
        assert isinstance(metadata, BidirectionalMetadata), "prepare comes first"
        return self._attend(q, k, v, metadata.texts, form.scale, window=form.window)
