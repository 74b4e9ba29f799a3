"""Sampling with temperature, top-k, top-p and min-p. A token may come if it is in all three sets, which are taken in the order
temperature, min-p, top-k, top-p, each on what the one before left. No sort of the vocabulary.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minivllm.worker.sampling.blocked import BLOCK, topk
from minivllm.worker.sampling.random import draw_columns, uniforms
from minivllm.worker.sampling.slot_params import RowParams

_SMALL_K = 64  # rows with a larger top_k are handled apart, so that they do not slow down the others


def sample(blocked: Tensor, maxima: Tensor, params: RowParams, positions: npt.NDArray[np.int64]) -> Tensor:
    """int64 [rows]: one random column per row. positions: of the new token in its output; temperatures are positive."""
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
            tokens[at] = of_rows(blocked[at], maxima[at], params.select(rows), positions[rows])
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
    """No row has a top_k: weights of the whole vocabulary."""
    device = blocked.device
    weights = blocked - maxima.amax(-1)[:, None, None]
    if (params.temperature != 1.0).any():
        weights *= _column(1 / params.temperature, device)[:, :, None]
    weights.exp_()
    rows = np.flatnonzero(params.min_p > 0)
    if len(rows):
        at = torch.from_numpy(rows).to(device)
        kept = weights[at]
        weights[at] = kept.masked_fill_(kept < _column(params.min_p[rows], device)[:, :, None], 0)
    tokens = draw_columns(weights, torch.from_numpy(uniforms(params.seed, positions, 0)).to(device))
    rows = np.flatnonzero(params.top_p < 1)
    if len(rows):
        at = torch.from_numpy(rows).to(device)
        weights = weights if len(rows) == len(positions) else weights[at]
        tokens[at] = _redraw_until_in_nucleus(weights, tokens[at], params.select(rows), positions[rows])
    return tokens


def _redraw_until_in_nucleus(weights: Tensor, tokens: Tensor, params: RowParams, positions: npt.NDArray[np.int64]) -> Tensor:
    """Top-p by rejection: a token is in the nucleus if the tokens above it weigh less than top_p of the whole.

    That needs one sum, not a sort. Whatever weighs no more than a rejected token is out as well, so the next draw is from
    those above it: about one row in ten needs a second draw, and the greatest is always accepted. Accepted tokens are
    distributed as the weights inside the nucleus, since each draw is from the weights restricted to a superset of it.
    """
    device = weights.device
    weights = weights.flatten(1)
    limit = torch.from_numpy(params.top_p).to(device) * weights.sum(-1).double()
    pending, attempt = torch.arange(len(tokens), device=device), 0
    while True:
        own = weights.gather(1, tokens[pending][:, None])
        above = torch.where(weights > own, weights, 0)
        rejected = (above.sum(-1).double() >= limit[pending]).nonzero().squeeze(1)
        if len(rejected) == 0:
            return tokens
        weights, pending, attempt = above[rejected], pending[rejected], attempt + 1
        again = pending.numpy(force=True)
        uniform = torch.from_numpy(uniforms(params.seed[again], positions[again], attempt)).to(device)
        tokens[pending] = draw_columns(weights.view(len(pending), -1, BLOCK), uniform)


def _column(values: npt.NDArray[np.float64], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(values).to(device, dtype)[:, None]
