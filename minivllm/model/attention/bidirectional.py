"""Attention of encoders: every token sees its whole text, and nothing is kept between steps."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.attention.backend import AttentionBackend, AttentionForm
from minivllm.model.attention.metadata import AttentionMetadata


class BidirectionalBackend(AttentionBackend):
    name = "bidirectional"

    def __init__(self, spec: ModelSpec, ops: Ops):
        """No facts of the model are needed."""

    @staticmethod
    def refusal(spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, device: str) -> str | None:
        return "it is for encoders" if spec.encoder is None else None

    def kv_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        return 2, num_blocks, 0, block_size, 0

    def prepare(self, metadata: AttentionMetadata) -> AttentionMetadata:
        return metadata

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, metadata: AttentionMetadata, form: AttentionForm) -> Tensor:
        """A window reaches as far forward as back."""
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for begin, end in pairwise(metadata.query_start.tolist()):
            queries, keys, values = (x[begin:end].transpose(0, 1).unsqueeze(0) for x in (q, k, v))
            mask = _near(end - begin, form.window, q.device) if 0 < form.window < end - begin else None
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=form.scale)
            out[begin:end] = attended[0].transpose(0, 1)
        return out


def _near(length: int, window: int, device: torch.device) -> Tensor:
    at = torch.arange(length, device=device)
    return (at[:, None] - at[None, :]).abs() < window
