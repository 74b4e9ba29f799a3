"""A token for each row of logits, and logprobs. Rules and random numbers are part of the contract: a seed gives the same text
on every back end, but for weights that differ by rounding.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BROKEN = -1  # instead of a token: NaN or +inf among the row's logits
NOTHING_LEFT = -2  # instead of a token: all of the row's logits are -inf


def choose(logits: Tensor, rows: Tensor | None, params: Tensor, seeds: Tensor, masks: Tensor | None = None) -> Tensor:
    """int64 [num_rows]: a token for each of `rows` (None: for all), BROKEN or NOTHING_LEFT.

    logits: [*, vocab_size] of any float type, not changed; rows: int64 [num_rows].
    params: fp64 [num_rows, 4]: temperature (0: greedy, the lowest of equal ones), top_k (0: off), top_p, min_p.
    seeds: int64 [num_rows, 2]: seed, and position of the new token in its text.
    masks: int64 [num_rows, columns / 64 rounded up], or None: bit c % 64 of word c // 64 is 0 where column c may not come.

    A token may come if it is in all three sets, which are taken in the order temperature, min-p, top-k, top-p, each on what the
    one before left. Which of equal logits at the border of top-k are inside is not defined.
    """
    wide = (logits if rows is None else logits[rows]).float()
    if masks is not None:
        wide = _masked(wide, masks)
    tokens = wide.argmax(-1)
    best = wide.gather(1, tokens[:, None]).squeeze(1)
    temperature, top_k = params[:, 0], params[:, 1]
    whole = (top_k == 0) | (top_k >= logits.shape[1])
    for chosen, of_rows in ((~whole, _choose_of_top), (whole, _choose_of_all)):
        at = (chosen & (temperature > 0) & best.isfinite()).nonzero().squeeze(1)
        if len(at):
            tokens[at] = of_rows(wide[at], params[at], seeds[at])
    tokens[~best.isfinite()] = BROKEN
    tokens[best == -torch.inf] = NOTHING_LEFT
    return tokens


def logprobs(logits: Tensor, rows: Tensor | None, tokens: Tensor, count: int, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logprobs in `rows` (None: all) of logits [*, at least vocab_size], at each row's token (int64 [num_rows]) and at the
    `count` greatest. Probabilities and alternatives are of the first `vocab_size` columns; the token may be one beyond them.

    -> values fp32 [num_rows, 1 + count]: the token's, then those of the alternatives in falling order; ids int64, alike;
    ranks int64 [num_rows]: of the token, 1 = most probable. In a row with NaN or +inf all values are NaN.
    """
    wide = (logits if rows is None else logits[rows]).float()
    own = wide.gather(1, tokens[:, None])
    wide = wide[:, :vocab_size]
    top, ids = wide.topk(count)
    log_sum = wide.logsumexp(-1, keepdim=True)
    log_sum[log_sum == torch.inf] = torch.nan
    return torch.cat((own, top), dim=1) - log_sum, torch.cat((tokens[:, None], ids), dim=1), (wide > own).sum(-1) + 1


def penalize(logits: Tensor, cells: Tensor, counts: Tensor, owners: Tensor, penalties: Tensor) -> None:
    """Change single cells of logits, fp32 [rows, columns] and contiguous, for tokens that came before.

    cells: int64 [n], row * columns + column, none twice. counts: fp32 [n], how often the token was generated. owners: int64
    [n], rows of `penalties`, fp32 [*, 3]: what positive logits are divided by and others multiplied with, what is subtracted
    for each time that the token was generated, and what if it was at all.
    """
    flat = logits.view(-1)
    values = flat[cells]
    repetition, frequency, presence = penalties[owners].unbind(-1)
    values = torch.where(values > 0, values / repetition, values * repetition)
    flat[cells] = values - (frequency * counts + presence * (counts > 0))


def _masked(logits: Tensor, masks: Tensor) -> Tensor:
    """-inf where a column may not come."""
    bits = masks[:, :, None] >> torch.arange(64, device=masks.device) & 1
    return logits.masked_fill(bits.flatten(1)[:, : logits.shape[1]] == 0, -torch.inf)


def _choose_of_top(wide: Tensor, params: Tensor, seeds: Tensor) -> Tensor:
    """Rows with a top_k: only their k candidates are looked at."""
    temperature, top_k, top_p, min_p = params[:, :, None].unbind(1)  # [rows, 1] each
    k = int(top_k.max())
    values, columns = wide.topk(k)
    weights = ((values - values[:, :1]) * (1 / temperature).float()).exp_().double()
    out = (weights < min_p) | (torch.arange(k, device=wide.device) >= top_k)
    weights.masked_fill_(out, 0)
    cumulative = weights.cumsum(-1)
    beyond = cumulative - weights >= top_p * cumulative[:, -1:]
    beyond[:, 0] = False  # rounding must not take the best one
    return columns.gather(1, _draw(weights.masked_fill_(beyond, 0), _uniforms(seeds, 0))[:, None]).squeeze(1)


def _choose_of_all(wide: Tensor, params: Tensor, seeds: Tensor) -> Tensor:
    """Top-p by rejection, of the tokens that weigh at least min_p.

    A token is inside if what is above it weighs less than top_p of all: a sum over a few columns, where a sort would look at
    the vocabulary. Whatever weighs no more than a rejected token is outside as well, so the next draw is from those above it,
    and the greatest is always inside. Each draw is from the weights restricted to a superset of the inside, hence accepted
    tokens are distributed as the weights inside.
    """
    temperature, _, top_p, min_p = params[:, :, None].unbind(1)  # [rows, 1] each
    weights = ((wide - wide.amax(-1, keepdim=True)) * (1 / temperature).float()).exp_()
    weights.masked_fill_(weights < min_p, 0)
    limit = torch.where(top_p < 1, top_p * weights.sum(-1, keepdim=True).double(), torch.inf)
    tokens = torch.empty(len(wide), dtype=torch.int64, device=wide.device)
    pending, attempt = torch.arange(len(wide), device=wide.device), 0
    while len(pending):
        drawn = _draw(weights, _uniforms(seeds[pending], attempt))
        tokens[pending] = drawn
        weights = weights.masked_fill(weights <= weights.gather(1, drawn[:, None]), 0)
        rejected = (weights.sum(-1).double() >= limit[pending, 0]).nonzero().squeeze(1)
        pending, weights, attempt = pending[rejected], weights[rejected], attempt + 1
    return tokens


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """int64 [rows]: a column of each row with probability in proportion to its weight, by inverting the cumulative sum.

    weights: [rows, columns], not negative, a positive one in each row; uniform: fp64 [rows] in [0, 1).
    """
    cumulative = weights.double().cumsum(-1)
    return torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True).squeeze(1)


def _uniforms(seeds: Tensor, attempt: int) -> Tensor:
    """fp64 [rows] in [0, 1): a hash of (seed, position, attempt), so neither slot nor neighbours matter."""
    seed, position = seeds.numpy(force=True).view(np.uint64).T
    mixed = _mix(_mix(seed) + position * np.uint64(0x9E3779B97F4A7C15))
    mixed = _mix(mixed + np.uint64(attempt * 0xD1342543DE82EF95 % 2**64))
    return torch.from_numpy((mixed >> np.uint64(12)).astype(np.float64) * 2.0**-52).to(seeds.device)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64 (Steele, Lea and Flood 2014): one step of the generator, its finaliser included."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
