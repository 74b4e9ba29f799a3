"""Attention of encoders: every token sees its whole text, and nothing is kept between steps."""

from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.attention.backend import AttentionBackend, AttentionForm
from minivllm.model.attention.metadata import AttentionMetadata


@dataclass(slots=True)
class BidirectionalMetadata(AttentionMetadata):
    """Texts of one length are computed together: the rows of each such group, [number of texts, length]."""

    groups: list[Tensor] = field(default_factory=list)
    masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # by length and window: which keys are near enough

    def near(self, length: int, window: int) -> Tensor:
        if (length, window) not in self.masks:
            at = torch.arange(length, device=self.query_start.device)
            self.masks[length, window] = (at[:, None] - at[None, :]).abs() < window
        return self.masks[length, window]


class BidirectionalBackend(AttentionBackend):
    name = "bidirectional"

    def __init__(self, spec: ModelSpec, ops: Ops):
        """No facts of the model are needed."""

    @staticmethod
    def refusal(spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, device: str) -> str | None:
        return "it is for encoders" if spec.encoder is None else None

    def kv_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        return 2, num_blocks, 0, block_size, 0

    def prepare(self, metadata: AttentionMetadata) -> BidirectionalMetadata:
        starts: dict[int, list[int]] = {}
        for begin, end in pairwise(metadata.query_start.tolist()):
            starts.setdefault(end - begin, []).append(begin)
        device = metadata.query_start.device
        groups = [
            torch.tensor(begins, device=device)[:, None] + torch.arange(length, device=device)
            for length, begins in starts.items()
        ]
        of = metadata
        return BidirectionalMetadata(of.query_start, of.context_lens, of.block_tables, of.slot_mapping, groups)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, metadata: AttentionMetadata, form: AttentionForm) -> Tensor:
        """A window reaches as far forward as back."""
        assert isinstance(metadata, BidirectionalMetadata), "prepare comes first"
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for rows in metadata.groups:
            queries, keys, values = (x[rows].transpose(1, 2) for x in (q, k, v))  # [texts, num_heads, length, head_dim]
            length = rows.shape[1]
            mask = metadata.near(length, form.window) if 0 < form.window < length else None
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=form.scale)
            out[rows] = attended.transpose(1, 2)
        return out
