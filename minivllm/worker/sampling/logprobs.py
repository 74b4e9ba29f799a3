"""Logprobs of the model's own distribution: log_softmax of the logits before any stage has changed them."""

import torch
from torch import Tensor

from minivllm.messages.step import TokenLogprobs
from minivllm.worker.sampling.blocked import count_above, topk


def gather_logprobs(blocked: Tensor, tokens: list[int], wanted: list[int], vocab_size: int) -> list[TokenLogprobs]:
    """One entry per row: the given token, then `wanted` alternatives (-1: the vocabulary). `blocked` is used up."""
    flat = blocked.flatten(1)
    own = flat.gather(1, torch.tensor(tokens, device=flat.device)[:, None])
    maxima = blocked.amax(-1)
    ranks = (count_above(blocked, maxima, own.squeeze(1)) + 1).long().tolist()
    most = max(vocab_size if n < 0 else min(n, vocab_size) for n in wanted)
    if most == 0:
        values, columns = own, own.new_empty((len(tokens), 0), dtype=torch.int64)
    else:
        top, columns = topk(blocked, maxima, most)
        values = torch.cat((own, top), dim=1)
    maximum = maxima.amax(-1, keepdim=True)
    values = values - (maximum + flat.sub_(maximum).exp_().sum(-1, keepdim=True).log_())
    return [
        TokenLogprobs([token, *ids[: None if n < 0 else n]], logprobs[: None if n < 0 else n + 1], rank)
        for token, ids, logprobs, rank, n in zip(tokens, columns.tolist(), values.tolist(), ranks, wanted, strict=True)
    ]
