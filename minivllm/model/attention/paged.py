"""Attention over the paged cache by the ops of the device: `kv_write` and `paged_attention`."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import head_shares
from minivllm.kernels import Ops
from minivllm.kernels.kv_pages import row_width
from minivllm.model.attention.backend import AttentionBackend, AttentionForm
from minivllm.model.attention.metadata import AttentionMetadata

MAX_GPU_HEAD_DIM = 256
KV_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # 8 bits beside them, where there are kernels for it
FP8 = torch.float8_e4m3fn


class PagedBackend(AttentionBackend):
    name = "paged"

    def __init__(self, spec: ModelSpec, ops: Ops):
        _, kv_heads = head_shares(spec, ops.group)
        self._num_kv_heads = kv_heads.size
        self._head_dim = spec.head_dim
        self._write_kv = ops.kv_write.write_kv
        self._paged_attention = ops.attention.paged_attention

    @staticmethod
    def refusal(spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, device: str) -> str | None:
        if spec.latent is not None:
            return "the model has latent vectors instead of keys and values"
        if spec.encoder is not None:
            return "it looks back only, and the model both ways"
        if device.startswith("cuda") and spec.head_dim > MAX_GPU_HEAD_DIM:
            return f"heads of {spec.head_dim} elements do not fit into a GPU's shared memory"
        if kv_dtype == torch.int8:
            return None if device == "cpu" else "it keeps an int8 cache on a CPU only"
        return None if kv_dtype in (*KV_DTYPES, FP8) else f"it keeps no {kv_dtype} cache"

    def kv_shape(self, num_blocks: int, block_size: int, dtype: torch.dtype) -> tuple[int, ...]:
        return 2, num_blocks, self._num_kv_heads, block_size, row_width(self._head_dim, dtype)

    def prepare(self, metadata: AttentionMetadata) -> AttentionMetadata:
        return metadata

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, metadata: AttentionMetadata, form: AttentionForm) -> Tensor:
        k_scale, v_scale = (form.k_scale, form.v_scale) if kv.dtype == FP8 else (1.0, 1.0)
        self._write_kv(k, v, kv, metadata.slot_mapping, k_scale=k_scale, v_scale=v_scale)
        return self._paged_attention(
            q,
            kv,
            metadata.block_tables,
            metadata.query_start,
            metadata.context_lens,
            form.scale,
            sliding_window=form.window,
            soft_cap=form.soft_cap,
            sinks=form.sinks,
            alibi_slopes=form.alibi_slopes,
            k_scale=k_scale,
            v_scale=v_scale,
        )
