"""Logprobs of the model's own distribution: log_softmax of the logits before any stage has changed them."""

from types import ModuleType

import torch
from torch import Tensor

from minivllm.messages.step import TokenLogprobs


def gather_logprobs(
    op: ModuleType, logits: Tensor, rows: list[int], tokens: list[int], wanted: int, vocab_size: int
) -> list[TokenLogprobs]:
    """One entry for each of `rows`: the given token, then `wanted` (-1: all) among the first `vocab_size` columns."""
    device, vocab_size = logits.device, min(vocab_size, logits.shape[1])
    count = vocab_size if wanted < 0 else min(wanted, vocab_size)
    found = op.logprobs(logits, torch.tensor(rows, device=device), torch.tensor(tokens, device=device), count, vocab_size)
    values, ids, ranks = (tensor.tolist() for tensor in found)
    return [TokenLogprobs(*entry) for entry in zip(ids, values, ranks, strict=True)]
