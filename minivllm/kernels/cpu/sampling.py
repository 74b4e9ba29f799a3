"""Choice of tokens and logprobs on the compiled kernels."""

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.tensors import DTYPES
from minivllm.kernels.reference import sampling as reference


def choose(logits: Tensor, rows: Tensor | None, params: Tensor, seeds: Tensor, masks: Tensor | None = None) -> Tensor:
    """See reference.sampling."""
    num_rows = _num_rows(logits, rows)
    if params.shape != (num_rows, 4) or params.dtype != torch.float64 or not params.is_contiguous():
        raise ValueError(f"params must be contiguous float64 [{num_rows}, 4], got {params.dtype} {list(params.shape)}")
    if seeds.shape != (num_rows, 2) or seeds.dtype != torch.int64 or not seeds.is_contiguous():
        raise ValueError(f"seeds must be contiguous int64 [{num_rows}, 2], got {seeds.dtype} {list(seeds.shape)}")
    words = -(-logits.shape[1] // 64)
    if masks is not None and (masks.shape != (num_rows, words) or masks.dtype != torch.int64 or not masks.is_contiguous()):
        raise ValueError(f"masks must be contiguous int64 [{num_rows}, {words}], got {masks.dtype} {list(masks.shape)}")
    if not _covers(logits):
        return reference.choose(logits, rows, params, seeds, masks)
    tokens = torch.empty(num_rows, dtype=torch.int64)
    _cpu.choose(
        DTYPES[logits.dtype], logits.data_ptr(), 0 if rows is None else rows.data_ptr(), num_rows, logits.stride(0),
        logits.shape[1], params.data_ptr(), seeds.data_ptr(), 0 if masks is None else masks.data_ptr(), tokens.data_ptr(),
    )  # fmt: skip
    return tokens


def logprobs(logits: Tensor, rows: Tensor | None, tokens: Tensor, count: int, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """See reference.sampling."""
    num_rows = _num_rows(logits, rows)
    if tokens.shape != (num_rows,) or tokens.dtype != torch.int64 or not tokens.is_contiguous():
        raise ValueError(f"tokens must be contiguous int64 [{num_rows}], got {tokens.dtype} {list(tokens.shape)}")
    if not 0 <= count <= vocab_size <= logits.shape[1]:
        raise ValueError(f"{count} alternatives in a vocabulary of {vocab_size}, with {logits.shape[1]} columns")
    if not _covers(logits):
        return reference.logprobs(logits, rows, tokens, count, vocab_size)
    values = torch.empty((num_rows, 1 + count), dtype=torch.float32)
    ids, ranks = torch.empty((num_rows, 1 + count), dtype=torch.int64), torch.empty(num_rows, dtype=torch.int64)
    _cpu.logprobs(
        DTYPES[logits.dtype], logits.data_ptr(), 0 if rows is None else rows.data_ptr(), num_rows, logits.stride(0),
        vocab_size, tokens.data_ptr(), count, values.data_ptr(), ids.data_ptr(), ranks.data_ptr(),
    )  # fmt: skip
    return values, ids, ranks


def penalize(logits: Tensor, cells: Tensor, counts: Tensor, owners: Tensor, penalties: Tensor) -> None:
    """See reference.sampling: too few cells to gain anything."""
    reference.penalize(logits, cells, counts, owners, penalties)


def _num_rows(logits: Tensor, rows: Tensor | None) -> int:
    if rows is None:
        return logits.shape[0]
    if rows.dtype != torch.int64 or not rows.is_contiguous():
        raise ValueError(f"rows must be contiguous int64, got {rows.dtype} {rows.stride()}")
    return rows.shape[0]


def _covers(logits: Tensor) -> bool:
    return logits.dtype in DTYPES and logits.stride(1) == 1
