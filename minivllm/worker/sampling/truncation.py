"""Sampling with temperature, top-k, top-p and min-p. A token may come if it is in all three sets, which are taken in the order
temperature, min-p, top-k, top-p, each on what the one before left. No sort of the vocabulary.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minivllm.worker.sampling.blocked import BLOCK, mass_above, topk
from minivllm.worker.sampling.random import draw_columns, uniforms
from minivllm.worker.sampling.slot_params import RowParams

_SMALL_K = 64  # rows with a larger top_k are handled apart, so that they do not slow down the others


def sample(blocked: Tensor, maxima: Tensor, params: RowParams, positions: npt.NDArray[np.int64]) -> Tensor:
    """int64 [rows]: one random column per row. positions: of the new token in its output; temperatures are positive.

    `blocked` is used up.
    """
    tokens = torch.empty(len(positions), dtype=torch.int64, device=blocked.device)
    small = (params.top_k > 0) & (params.top_k <= _SMALL_K)
    for chosen, of_rows in (
        (small, _sample_top_k),
        (params.top_k > _SMALL_K, _sample_top_k),
        (params.top_k == 0, _sample_whole),
    ):
        rows = np.flatnonzero(chosen)
        if len(rows) == len(positions):
            return of_rows(blocked, maxima, params, positions)
        if len(rows):
            at = torch.from_numpy(rows).to(blocked.device)
            tokens[at] = of_rows(blocked.index_select(0, at), maxima[at], params.select(rows), positions[rows])
    return tokens


def _sample_top_k(blocked: Tensor, maxima: Tensor, params: RowParams, positions: npt.NDArray[np.int64]) -> Tensor:
    """All rows have a top_k: only their k candidates are looked at."""
    device = blocked.device
    k = min(int(params.top_k.max()), blocked.shape[1] * BLOCK)
    values, columns = topk(blocked, maxima, k)
    weights = ((values - values[:, :1]) * _column(1 / params.temperature, device)).exp_().double()
    out = weights < _column(params.min_p, device, torch.float64)
    out |= torch.arange(k, device=device) >= torch.from_numpy(params.top_k).to(device)[:, None]
    weights.masked_fill_(out, 0)
    cumulative = weights.cumsum(-1)
    beyond = cumulative - weights >= _column(params.top_p, device, torch.float64) * cumulative[:, -1:]
    beyond[:, 0] = False  # rounding must not take the best one
    cumulative = weights.masked_fill_(beyond, 0).cumsum(-1)
    uniform = torch.from_numpy(uniforms(params.seed, positions, 0)).to(device)
    at = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    return columns.gather(1, at).squeeze(1)


def _sample_whole(blocked: Tensor, maxima: Tensor, params: RowParams, positions: npt.NDArray[np.int64]) -> Tensor:
    """No row has a top_k: weights of the whole vocabulary, the greatest 1."""
    device = blocked.device
    greatest, weights = maxima.amax(-1, keepdim=True), blocked
    weights.sub_(greatest[:, :, None])
    if (params.temperature != 1.0).any():
        weights.mul_(_column(1 / params.temperature, device)[:, :, None])
    weights.exp_()
    tokens = draw_columns(weights, torch.from_numpy(uniforms(params.seed, positions, 0)).to(device))
    rows = np.flatnonzero((params.top_p < 1) | (params.min_p > 0))
    if len(rows):
        at = torch.from_numpy(rows).to(device)
        if len(rows) < len(positions):
            weights = weights.index_select(0, at)
        tokens[at] = _redraw_until_inside(weights, tokens[at], params.select(rows), positions[rows])
    return tokens


def _redraw_until_inside(weights: Tensor, tokens: Tensor, params: RowParams, positions: npt.NDArray[np.int64]) -> Tensor:
    """Top-p and min-p by rejection. `tokens` were drawn from all weights.

    A token is inside if it weighs at least min_p, and what is above it weighs less than top_p of all that does: a sum over
    the few blocks with something above, where a sort would look at the vocabulary. Whatever weighs no more than a rejected
    token is outside as well, so the next draw is from those above it, and the greatest is always inside. Each draw is from
    the weights restricted to a superset of the inside, hence accepted tokens are distributed as the weights inside.
    """
    device = weights.device
    maxima = weights.amax(-1)
    least, top_p = (torch.from_numpy(values).to(device) for values in (params.min_p, params.top_p))
    # The greatest float below min_p, so that "above" includes min_p itself. Infinity: no blocks to look at.
    below_least = torch.nextafter(least.float(), torch.tensor(-1.0, device=device))
    with_least = mass_above(weights, maxima, torch.where(least > 0, below_least, torch.inf))
    total = torch.where(least > 0, with_least, weights.sum((1, 2))).double()
    limit = torch.where(top_p < 1, top_p * total, torch.inf)
    pending, attempt = torch.arange(len(tokens), device=device), 0
    while True:
        own = weights.flatten(1).gather(1, tokens[pending][:, None]).squeeze(1)
        outside = (mass_above(weights, maxima, own) >= limit[pending]) | (own <= below_least[pending])
        rejected = outside.nonzero().squeeze(1)
        if len(rejected) == 0:
            return tokens
        pending, attempt = pending[rejected], attempt + 1
        weights, bound = weights.index_select(0, rejected), own[rejected, None, None]
        weights.mul_(torch.gt(weights, bound, out=torch.empty_like(weights)))
        maxima = weights.amax(-1)
        again = pending.numpy(force=True)
        uniform = torch.from_numpy(uniforms(params.seed[again], positions[again], attempt)).to(device)
        tokens[pending] = draw_columns(weights, uniform)


def _column(values: npt.NDArray[np.float64], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(values).to(device, dtype)[:, None]
