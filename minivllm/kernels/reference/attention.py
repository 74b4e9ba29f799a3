"""Attention in torch: causal over a paged KV cache, one sequence at a time, softmax in fp32; and of whole texts."""

import torch
import torch.nn.functional as F
from torch import Tensor

from minivllm.kernels.kv_pages import as_floats
from minivllm.kernels.texts import Texts

# Queries of one sequence are handled in tiles, so that the score matrix stays small for long prompts.
_QUERY_TILE = 256


def paged_attention(
    q: Tensor,
    kv: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor | None = None,
    *,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Tensor:
    """Attend each query token to the keys of its sequence up to its own position.

    q: [num_tokens, num_heads, head_dim]; kv: see kernels.kv_pages; block_tables: int32 [num_seqs, max_blocks];
    query_start: int32 [num_seqs + 1]; context_lens: int32 [num_seqs], keys including this step's. Query i of a sequence sits at
    position context_len - query_len + i. With a sliding window W it sees keys in (position - W, position]; with a soft cap c
    scores become c * tanh(score / c). alibi_slopes: fp32 [num_heads], slope * (key's position - query's) is added to scores
    (Press et al. 2021); sinks: [num_heads], a further score that takes weight and has no value (Xiao et al. 2023). The cache
    holds keys / k_scale and values / v_scale.
    Only table entries and cache rows of visible keys are read.
    """
    out = torch.empty_like(q) if out is None else out
    starts, contexts = query_start.tolist(), context_lens.tolist()
    for seq, context_len in enumerate(contexts):
        first, last = starts[seq], starts[seq + 1]
        for begin in range(first, last, _QUERY_TILE):
            end = min(begin + _QUERY_TILE, last)
            position = context_len - (last - begin)
            high = position + (end - begin)
            low = max(0, position - sliding_window + 1) if sliding_window else 0
            keys, values = _gather(kv, block_tables[seq], low, high)
            scores = _scores(q[begin:end], keys, scale * k_scale, soft_cap)
            if alibi_slopes is not None:
                scores += _distances(scores, position, low) * alibi_slopes.float().view(*scores.shape[:2], 1, 1)
            _mask(scores, position, low, sliding_window)
            out[begin:end] = (_combine(_softmax(scores, sinks), values) * v_scale).to(out.dtype)
    return out


def latent_attention(
    q: Tensor, cache: Tensor, block_tables: Tensor, query_start: Tensor, context_lens: Tensor, scale: float, rank: int
) -> Tensor:
    """As `paged_attention` where all heads have the same key, whose first `rank` elements are also the value.

    q: [num_tokens, num_heads, dim]; cache: [1, num_blocks, 1, block_size, dim]; back comes [num_tokens, num_heads, rank].
    """
    return paged_attention(q, cache, block_tables, query_start, context_lens, scale)[..., :rank]


def whole_attention(
    q: Tensor, k: Tensor, v: Tensor, texts: Texts, scale: float, out: Tensor | None = None, *, window: int = 0
) -> Tensor:
    """Attend each token to its whole text, or to what is nearer than `window` tokens, if that is not 0.

    q, k, v: [num_tokens, num_heads, head_dim].
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    for length, rows in texts.groups:
        # [texts, num_heads, length, head_dim]
        queries, keys, values = (x[rows].unflatten(0, (-1, length)).transpose(1, 2) for x in (q, k, v))
        mask = texts.near(length, window) if 0 < window < length else None
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
        out[rows] = attended.transpose(1, 2).flatten(0, 1)
    return out


def _gather(kv: Tensor, table: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Keys and values of positions low..high as fp32 [num_kv_heads, high - low, head_dim]. They may be the same ones."""
    block_size = kv.shape[3]
    first = low // block_size
    blocks = table[first : -(-high // block_size)].long()
    offset = low - first * block_size
    pages = as_floats(kv[:, blocks]).transpose(1, 2).flatten(2, 3)  # [1 or 2, num_kv_heads, keys of whole blocks, head_dim]
    found = pages[:, :, offset : offset + high - low]
    return found[0], found[-1]


def _scores(q: Tensor, keys: Tensor, scale: float, soft_cap: float) -> Tensor:
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[0]
    grouped = q.float().view(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("tkgd,knd->kgtn", grouped, keys) * scale
    return soft_cap * torch.tanh(scores / soft_cap) if soft_cap else scores


def _distances(scores: Tensor, position: int, low: int) -> Tensor:
    """fp32 [queries, keys]: the key's position less the query's."""
    num_tokens, num_keys = scores.shape[-2:]
    query_at = torch.arange(position, position + num_tokens, device=scores.device)[:, None]
    return (torch.arange(low, low + num_keys, device=scores.device)[None, :] - query_at).float()


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks.float().view(*scores.shape[:2], 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]


def _mask(scores: Tensor, position: int, low: int, sliding_window: int) -> None:
    num_tokens, num_keys = scores.shape[-2:]
    if num_tokens == 1:  # the gathered range is exactly what a single query sees
        return
    query_at = torch.arange(position, position + num_tokens, device=scores.device)[:, None]
    key_at = torch.arange(low, low + num_keys, device=scores.device)[None, :]
    hidden = key_at > query_at
    if sliding_window:
        hidden |= key_at <= query_at - sliding_window
    scores.masked_fill_(hidden, float("-inf"))


def _combine(weights: Tensor, values: Tensor) -> Tensor:
    mixed = torch.einsum("kgtn,knd->tkgd", weights, values)
    return mixed.flatten(1, 2)
