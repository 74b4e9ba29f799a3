"""Logprobs of the model's own distribution: log_softmax of the logits before any stage has changed them."""

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from minivllm.messages.step import TokenLogprobs


def gather_logprobs(
    op: ModuleType, logits: Tensor, rows: list[int], tokens: list[int], wanted: int, vocab_size: int
) -> list[TokenLogprobs]:
    """One entry for each of `rows`: the given token, then `wanted` (-1: all) among the first `vocab_size` columns."""
    at, given = torch.tensor(rows, device=logits.device), torch.tensor(tokens, device=logits.device)
    return entries_of(find_logprobs(op, logits, at, given, wanted, vocab_size))


def find_logprobs(
    op: ModuleType, logits: Tensor, rows: Tensor | None, tokens: Tensor, wanted: int, vocab_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as tensors on the device, for `entries_of`."""
    vocab_size = min(vocab_size, logits.shape[1])
    return op.logprobs(logits, rows, tokens, vocab_size if wanted < 0 else min(wanted, vocab_size), vocab_size)


def entries_of(found: Sequence[Tensor]) -> list[TokenLogprobs]:
    values, ids, ranks = (tensor.tolist() for tensor in found)
    return [TokenLogprobs(*entry) for entry in zip(ids, values, ranks, strict=True)]
