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
    """Texts of one length are computed together: the length of each such group, and its rows, side by side or anywhere."""

    groups: list[tuple[int, slice | Tensor]] = field(default_factory=list)
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

    def kv_shape(self, num_blocks: int, block_size: int, dtype: torch.dtype) -> tuple[int, ...]:
        return 2, num_blocks, 0, block_size, 0

    def prepare(self, metadata: AttentionMetadata) -> BidirectionalMetadata:
        starts: dict[int, list[int]] = {}
        for begin, end in pairwise(metadata.query_start.tolist()):
            starts.setdefault(end - begin, []).append(begin)
        groups = [(length, _rows(begins, length, metadata.query_start.device)) for length, begins in starts.items()]
        of = metadata
        return BidirectionalMetadata(of.query_start, of.context_lens, of.block_tables, of.slot_mapping, groups)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, metadata: AttentionMetadata, form: AttentionForm) -> Tensor:
        """A window reaches as far forward as back."""
        assert isinstance(metadata, BidirectionalMetadata), "prepare comes first"
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for length, rows in metadata.groups:
            # [texts, num_heads, length, head_dim]
            queries, keys, values = (x[rows].unflatten(0, (-1, length)).transpose(1, 2) for x in (q, k, v))
            mask = metadata.near(length, form.window) if 0 < form.window < length else None
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=form.scale)
            out[rows] = attended.transpose(1, 2).flatten(0, 1)
        return out


def _rows(begins: list[int], length: int, device: torch.device) -> slice | Tensor:
    """Of texts that begin there. A slice costs no copy."""
    if begins[-1] - begins[0] == (len(begins) - 1) * length:
        return slice(begins[0], begins[-1] + length)
    return (torch.tensor(begins, device=device)[:, None] + torch.arange(length, device=device)).flatten()
