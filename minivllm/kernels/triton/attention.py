"""Paged attention in Triton: one kernel for prompts, chunks and decoding, and a reduction where contexts are divided.

A program has the query heads that share a key/value head, for one or several tokens of a sequence, as the rows of its
matrix products:   row = token * GROUP + head in the group.   It walks over tiles of keys with a running softmax (Milakov and
Gimelshein 2018; Dao et al. 2022). With few programs the keys of a sequence are divided among several (Dao et al. 2023).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.reference import attention as reference
from minivllm.kernels.texts import Texts
from minivllm.kernels.triton.launch import find_owner, num_processors, power_of_2
from minivllm.kernels.triton.tiles import MEASURED

_MAX_SPLITS = 32
_MIN_SPLIT_KEYS = 256  # a shorter part costs more in the reduction than it saves
_MAX_GROUP = 128
_LOG2E = 1.4426950408889634  # weights are powers of 2, which the device has an instruction for


@triton.jit
def _attend(
    begin, end, q, biggest, total, acc, key_ptr, value_ptr, table_row, low, high, position, window, scale, soft_cap,
    slope, kv_head,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    WINDOWED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Tiles begin to end of keys. MASKED: some of them are not visible to all rows; these may not even be read."""
    # To bf16 by way of fp32: else it is by way of fp16, and then one by one in the unit that makes exponentials.
    NARROW: tl.constexpr = key_ptr.dtype.element_ty.primitive_bitwidth == 8
    dims = tl.arange(0, DIM_PAD)
    for tile in range(begin, end):
        key_at = tile * TILE + tl.arange(0, TILE)
        if MASKED:
            readable = (key_at >= low) & (key_at < high)
            page = tl.load(table_row + key_at // PAGE, mask=readable, other=0).to(tl.int64)
        else:
            page = tl.load(table_row + key_at // PAGE).to(tl.int64)
        offset = ((page * KV_HEADS + kv_head) * PAGE + key_at % PAGE) * DIM  # [TILE]
        key_ptrs, value_ptrs = key_ptr + offset[None, :] + dims[:, None], value_ptr + offset[:, None] + dims[None, :]
        if MASKED:
            k = tl.load(key_ptrs, mask=readable[None, :] & (dims < DIM)[:, None], other=0.0)
        elif DIM != DIM_PAD:
            k = tl.load(key_ptrs, mask=(dims < DIM)[:, None], other=0.0)
        else:
            k = tl.load(key_ptrs)
        if NARROW:
            k = k.to(tl.float32)
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION) * scale
        if CAPPED:
            scores = soft_cap * (1 - 2 / (tl.exp2(scores * (2 * 1.4426950408889634 / soft_cap)) + 1))
        if SLOPED:
            scores += slope[:, None] * (key_at[None, :] - position[:, None]).to(tl.float32)
        if CAPPED or SLOPED:
            scores *= 1.4426950408889634
        if MASKED:
            visible = (key_at[None, :] <= position[:, None]) & readable[None, :]
            if WINDOWED:
                visible = visible & (key_at[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, -float("inf"))
        bigger = tl.maximum(biggest, tl.max(scores, 1))
        # A row that has seen nothing yet stays at -inf, and must not become NaN.
        base = tl.where(bigger == -float("inf"), 0.0, bigger) if MASKED else bigger
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(biggest - base)
        if MASKED:
            v = tl.load(value_ptrs, mask=readable[:, None] & (dims < DIM)[None, :], other=0.0)
        elif DIM != DIM_PAD:
            v = tl.load(value_ptrs, mask=(dims < DIM)[None, :], other=0.0)
        else:
            v = tl.load(value_ptrs)
        if NARROW:
            v = v.to(tl.float32)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(q.dtype), v.to(q.dtype), acc * shrink[:, None], input_precision=PRECISION)
        biggest = bigger
    return biggest, total, acc


@triton.jit
def _tiles(first, last, window, split, TILE: tl.constexpr, SPLITS: tl.constexpr, WINDOWED: tl.constexpr):
    """The first visible key of queries at positions first to last, and the bounds of three runs of tiles of keys."""
    low = 0
    if WINDOWED:
        low = tl.maximum(0, first - window + 1)
    begin = low // TILE
    end = tl.cdiv(last + 1, TILE)
    if SPLITS > 1:
        share = tl.cdiv(end - begin, SPLITS)
        begin = tl.minimum(begin + split * share, end)
        end = tl.minimum(begin + share, end)
    full = begin
    if WINDOWED:
        full = tl.minimum(tl.maximum(tl.cdiv(last - window + 1, TILE), begin), end)
    return low, begin, full, tl.minimum(tl.maximum((first + 1) // TILE, full), end), end


@triton.jit
def _queries(start_ptr, num_seqs, QUERIES: tl.constexpr, DECODE: tl.constexpr):
    """The program's sequence, where that starts and how many queries it has, and how many come before the program's."""
    if DECODE:
        seq = tl.program_id(0)
        skipped = 0
    else:
        block = tl.num_programs(0) - 1 - tl.program_id(0)  # the ends of long prompts, which take longest, first
        seq = find_owner(start_ptr, num_seqs, block, QUERIES)
        skipped = (block - tl.load(start_ptr + seq) // QUERIES - seq) * QUERIES
    start = tl.load(start_ptr + seq)
    return seq, start, tl.load(start_ptr + seq + 1) - start, skipped


@triton.jit(do_not_specialize=["num_seqs", "window", "table_stride"])
def attention_kernel(
    out_ptr, stats_ptr, q_ptr, key_ptr, value_ptr, table_ptr, start_ptr, context_ptr, slope_ptr, sink_ptr,
    num_seqs, window, scale, v_scale, soft_cap, q_stride, out_stride, table_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, DECODE: tl.constexpr, WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr, SLOPED: tl.constexpr, SUNK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of queries, key/value heads, parts of the keys. With SPLITS > 1, `out` is fp32
    [num_tokens, HEADS, SPLITS, DIM], sums of weighted values, and `stats` [num_tokens, HEADS, SPLITS, 2] has for each the
    greatest score, as a power of 2, and the sum of weights."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    QUERIES: tl.constexpr = ROWS // GROUP
    PRECISION: tl.constexpr = "tf32x3" if WIDE else "tf32"
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq, start, query_len, skipped = _queries(start_ptr, num_seqs, QUERIES, DECODE)
    if skipped >= query_len:
        return
    context_len = tl.load(context_ptr + seq)
    first = context_len - query_len + skipped  # position of the first token
    last = tl.minimum(first + QUERIES, context_len) - 1

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    token = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    real = (token < QUERIES) & (skipped + token < query_len)
    mask = real[:, None] & (dims < DIM)[None, :]
    at = start + skipped + token
    q = tl.load(q_ptr + at.to(tl.int64)[:, None] * q_stride + head[:, None] * DIM + dims[None, :], mask=mask, other=0.0)
    q = q.to(tl.float32) if WIDE else q
    position = first + token
    slope = tl.load(slope_ptr + head, mask=real, other=0.0) if SLOPED else tl.zeros((ROWS,), tl.float32)
    biggest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    if SUNK:
        counted = split == 0  # once, though the keys are divided
        sink = tl.load(sink_ptr + head, mask=real, other=0.0).to(tl.float32) * 1.4426950408889634
        biggest = tl.where(counted, sink, biggest)
        total = tl.where(counted, 1.0, total)
    acc = tl.zeros((ROWS, DIM_PAD), tl.float32)

    # Tiles [begin, full) and [partial, end) are not visible to all rows, those between are.
    low, begin, full, partial, end = _tiles(first, last, window, split, TILE, SPLITS, WINDOWED)
    table_row = table_ptr + seq.to(tl.int64) * table_stride
    high = last + 1
    if WINDOWED:
        biggest, total, acc = _attend(
            begin, full, q, biggest, total, acc, key_ptr, value_ptr, table_row, low, high, position, window, scale, soft_cap,
            slope, kv_head, KV_HEADS, DIM, DIM_PAD, PAGE, TILE, WINDOWED, CAPPED, SLOPED, True, PRECISION,
        )  # fmt: skip
    biggest, total, acc = _attend(
        full, partial, q, biggest, total, acc, key_ptr, value_ptr, table_row, low, high, position, window, scale, soft_cap,
        slope, kv_head, KV_HEADS, DIM, DIM_PAD, PAGE, TILE, WINDOWED, CAPPED, SLOPED, False, PRECISION,
    )  # fmt: skip
    biggest, total, acc = _attend(
        partial, end, q, biggest, total, acc, key_ptr, value_ptr, table_row, low, high, position, window, scale, soft_cap,
        slope, kv_head, KV_HEADS, DIM, DIM_PAD, PAGE, TILE, WINDOWED, CAPPED, SLOPED, True, PRECISION,
    )  # fmt: skip

    if SPLITS > 1:
        place = (at.to(tl.int64) * HEADS + head) * SPLITS + split
        tl.store(stats_ptr + place * 2, biggest, mask=real)
        tl.store(stats_ptr + place * 2 + 1, total, mask=real)
        if (begin < end) | (split == 0):
            tl.store(out_ptr + place[:, None] * DIM + dims[None, :], acc, mask=mask)
    else:
        acc = acc * (v_scale / tl.where(total == 0, 1.0, total))[:, None]
        out_ptrs = out_ptr + at.to(tl.int64)[:, None] * out_stride + head[:, None] * DIM + dims[None, :]
        tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_seqs", "table_stride"])
def latent_kernel(
    out_ptr, stats_ptr, q_ptr, cache_ptr, table_ptr, start_ptr, context_ptr, num_seqs, scale, q_stride, table_stride,
    HEADS: tl.constexpr, SHARING: tl.constexpr, RANK: tl.constexpr, RANK_PAD: tl.constexpr, TAIL: tl.constexpr,
    TAIL_PAD: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    DECODE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of queries, of SHARING heads, parts of the keys. A key has RANK elements, which are the value as well, and
    TAIL more. out and stats as in attention_kernel, with RANK for DIM."""
    QUERIES: tl.constexpr = ROWS // SHARING
    PRECISION: tl.constexpr = "tf32x3" if WIDE else "tf32"
    split = tl.program_id(2)
    seq, start, query_len, skipped = _queries(start_ptr, num_seqs, QUERIES, DECODE)
    if skipped >= query_len:
        return
    context_len = tl.load(context_ptr + seq)
    first = context_len - query_len + skipped
    last = tl.minimum(first + QUERIES, context_len) - 1

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, RANK_PAD)
    tail = tl.arange(0, TAIL_PAD)
    token = rows // SHARING
    head = tl.program_id(1) * SHARING + rows % SHARING
    real = (skipped + token < query_len) & (head < HEADS)
    at = (start + skipped + token).to(tl.int64)
    mask = real[:, None] & (dims < RANK)[None, :]
    q_ptrs = q_ptr + (at * q_stride + head * (RANK + TAIL))[:, None]
    q = tl.load(q_ptrs + dims[None, :], mask=mask, other=0.0)
    q_tail = tl.load(q_ptrs + RANK + tail[None, :], mask=real[:, None] & (tail < TAIL)[None, :], other=0.0)
    if WIDE:
        q = q.to(tl.float32)
        q_tail = q_tail.to(tl.float32)
    biggest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, RANK_PAD), tl.float32)

    _, begin, _, _, end = _tiles(first, last, 0, split, TILE, SPLITS, False)
    for tile in range(begin, end):
        key_at = tile * TILE + tl.arange(0, TILE)
        readable = key_at <= last
        page = tl.load(table_ptr + seq.to(tl.int64) * table_stride + key_at // PAGE, mask=readable, other=0).to(tl.int64)
        keys = cache_ptr + (page * PAGE + key_at % PAGE) * (RANK + TAIL)
        k = tl.load(keys[:, None] + dims[None, :], mask=readable[:, None] & (dims < RANK)[None, :], other=0.0).to(q.dtype)
        k_tail = tl.load(keys[None, :] + RANK + tail[:, None], mask=readable[None, :] & (tail < TAIL)[:, None], other=0.0)
        scores = tl.dot(q_tail, k_tail.to(q.dtype), input_precision=PRECISION)
        scores = tl.dot(q, tl.trans(k), scores, input_precision=PRECISION) * scale
        scores = tl.where(key_at[None, :] <= (first + token)[:, None], scores, -float("inf"))
        bigger = tl.maximum(biggest, tl.max(scores, 1))
        base = tl.where(bigger == -float("inf"), 0.0, bigger)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(biggest - base)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(q.dtype), k, acc * shrink[:, None], input_precision=PRECISION)
        biggest = bigger

    place = at * HEADS + head
    if SPLITS > 1:
        place = place * SPLITS + split
        tl.store(stats_ptr + place * 2, biggest, mask=real)
        tl.store(stats_ptr + place * 2 + 1, total, mask=real)
        if (begin < end) | (split == 0):
            tl.store(out_ptr + place[:, None] * RANK + dims[None, :], acc, mask=mask)
    else:
        acc = acc / tl.where(total == 0, 1.0, total)[:, None]
        tl.store(out_ptr + place[:, None] * RANK + dims[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def reduction_kernel(
    out_ptr, sums_ptr, stats_ptr, v_scale, out_stride, HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Grid: tokens, heads. Adds up the parts of `attention_kernel`."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, DIM_PAD)
    place = (token * HEADS + head) * SPLITS + splits
    biggest = tl.load(stats_ptr + place * 2)
    total = tl.load(stats_ptr + place * 2 + 1)
    base = tl.max(biggest, 0)
    base = tl.where(base == -float("inf"), 0.0, base)
    weights = tl.exp2(biggest - base)
    # Parts without keys have stored no sums; a sink alone has a weight, but no value.
    used = (total > 0)[:, None] & (dims < DIM)[None, :]
    sums = tl.load(sums_ptr + place[:, None] * DIM + dims[None, :], mask=used, other=0.0)
    whole = tl.sum(total * weights, 0)
    mean = tl.sum(sums * weights[:, None], 0) * (v_scale / tl.where(whole == 0, 1.0, whole))
    tl.store(out_ptr + token * out_stride + head * DIM + dims, mean.to(out_ptr.dtype.element_ty), mask=dims < DIM)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a launch divides its work."""

    rows: int  # of the matrix products
    tile: int  # keys
    splits: int  # parts of the keys of each sequence
    warps: int
    stages: int


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
    """See reference.attention. If there are as many tokens as sequences, each must have one. Contexts may be as long as the
    tables are wide; how they are divided depends on that width."""
    out = torch.empty_like(q) if out is None else out
    num_tokens, num_heads, dim = q.shape
    _, _, num_kv_heads, page, _ = kv.shape
    num_seqs = context_lens.shape[0]
    group = num_heads // num_kv_heads
    if group > _MAX_GROUP or kv.shape[4] != dim or q.stride(1) != dim or out.stride(1) != dim or not kv.is_contiguous():
        raise ValueError(
            f"shapes or strides do not fit: q {list(q.shape)} {q.stride()}, kv {list(kv.shape)}, out {out.stride()}"
        )
    if not num_tokens:
        return out
    decode = num_tokens == num_seqs
    wide = (q.dtype != kv.dtype and kv.dtype.itemsize > 1) or q.dtype == torch.float32
    extras = (sliding_window > 0) + (soft_cap > 0) + (alibi_slopes is not None)
    shape = choose_shape(
        num_tokens, num_seqs, group, num_kv_heads, dim, wide, extras, block_tables.shape[1] * page, num_processors(q.device)
    )
    splits, dim_pad = shape.splits, power_of_2(max(dim, 16))
    plain = not soft_cap and alibi_slopes is None
    target, stats, target_stride = out, out, out.stride(0)
    if splits > 1:
        target = torch.empty((num_tokens, num_heads, splits, dim), dtype=torch.float32, device=q.device)
        stats = torch.empty((num_tokens, num_heads, splits, 2), dtype=torch.float32, device=q.device)
    queries = shape.rows // group
    blocks = num_seqs if decode else num_tokens // queries + num_seqs
    attention_kernel[(blocks, num_kv_heads, splits)](
        target, stats, q, kv[0], kv[1], block_tables, query_start, context_lens,
        q if alibi_slopes is None else alibi_slopes, q if sinks is None else sinks,
        num_seqs, sliding_window, scale * k_scale * (_LOG2E if plain else 1.0), float(v_scale), float(soft_cap),
        q.stride(0), target_stride, block_tables.stride(0),
        num_heads, num_kv_heads, dim, dim_pad, page, shape.rows, shape.tile, splits, decode, sliding_window > 0,
        soft_cap > 0, alibi_slopes is not None, sinks is not None, wide,
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    if splits > 1:
        reduction_kernel[(num_tokens, num_heads)](
            out, target, stats, float(v_scale), out.stride(0), num_heads, dim, dim_pad, splits, num_warps=1 if dim <= 64 else 4
        )
    return out


def latent_attention(
    q: Tensor, cache: Tensor, block_tables: Tensor, query_start: Tensor, context_lens: Tensor, scale: float, rank: int
) -> Tensor:
    """See reference.attention. What paged_attention says of tokens and tables holds here, too."""
    num_tokens, num_heads, dim = q.shape
    num_seqs, page = context_lens.shape[0], cache.shape[3]
    if cache.shape[4] != dim or not q.is_contiguous() or not cache.is_contiguous():
        raise ValueError(f"shapes or strides do not fit: q {list(q.shape)} {q.stride()}, cache {list(cache.shape)}")
    out = torch.empty((num_tokens, num_heads, rank), dtype=q.dtype, device=q.device)
    if not num_tokens:
        return out
    decode, wide = num_tokens == num_seqs, torch.float32 in (q.dtype, cache.dtype)
    # Sums of 512 elements a row fill the registers: masks of heads have no room beside 64 of them.
    most_rows = 16 if wide else 64 if num_heads % 64 == 0 else 32
    rows = max(16, min(most_rows, power_of_2(num_heads) * (1 if decode else -(-num_tokens // num_seqs))))
    sharing = min(rows, power_of_2(num_heads))
    queries, head_blocks = rows // sharing, triton.cdiv(num_heads, sharing)
    splits = 1
    if decode:
        splits = _choose_splits(num_processors(q.device), num_seqs * head_blocks, block_tables.shape[1] * page)
    target, stats = out, out
    if splits > 1:
        target = torch.empty((num_tokens, num_heads, splits, rank), dtype=torch.float32, device=q.device)
        stats = torch.empty((num_tokens, num_heads, splits, 2), dtype=torch.float32, device=q.device)
    rank_pad, tail_pad = power_of_2(max(rank, 16)), power_of_2(max(dim - rank, 16))
    stages = 2 if wide else 3 if rows > 32 else 5  # as in choose_shape: with two, each tile waits for its pages
    latent_kernel[(num_seqs if decode else num_tokens // queries + num_seqs, head_blocks, splits)](
        target, stats, q, cache, block_tables, query_start, context_lens, num_seqs, scale * _LOG2E, q.stride(0),
        block_tables.stride(0), num_heads, sharing, rank, rank_pad, dim - rank, tail_pad, page, rows, 16 if wide else 32,
        splits, decode, wide, num_warps=8 if rows > 16 else 4, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        reduction_kernel[(num_tokens, num_heads)](out, target, stats, 1.0, out.stride(0), num_heads, rank, rank_pad, splits,
                                                  num_warps=4)  # fmt: skip
    return out


def whole_attention(
    q: Tensor, k: Tensor, v: Tensor, texts: Texts, scale: float, out: Tensor | None = None, *, window: int = 0
) -> Tensor:
    """See reference.attention: torch's own kernels are made for this."""
    return reference.whole_attention(q, k, v, texts, scale, out, window=window)


def choose_shape(
    num_tokens: int, num_seqs: int, group: int, num_kv_heads: int, dim: int, wide: bool, extras: int, max_context: int,
    processors: int,
) -> Shape:  # fmt: skip
    """From sizes that the host knows. `wide`: products in fp32, whose tiles are twice as large; extras: options that
    take registers for scores; max_context: in keys."""
    decode, plain = num_tokens == num_seqs, not (wide or extras)
    prompt = MEASURED.get(("prompt", power_of_2(dim))) if plain and not decode else None
    most_rows = prompt[0] if prompt else 16 if wide else 64 if dim > 128 or extras else 128
    rows = power_of_2(group if decode else min(most_rows, -(-num_tokens // max(num_seqs, 1)) * group))
    rows = max(16, power_of_2(group), rows)
    tile = 16 if wide else 32 if dim > 128 or (extras and rows >= 64) or (decode and dim > 64) else 64
    # The page of a key is read before the key: of five stages, keys and values are ahead by two.
    stages = 2 if wide else 3 if rows >= 64 else 5
    warps = 8 if rows >= 64 else 4
    if decode and plain:
        tile, warps, stages = MEASURED.get(("decode", power_of_2(dim), rows), (tile, warps, stages))
    elif prompt and rows == most_rows:
        _, tile, warps, stages = prompt
    (parts,) = MEASURED.get(("parts",), (3,))
    splits = _choose_splits(parts * processors, num_seqs * num_kv_heads, max_context) if decode else 1
    return Shape(rows, tile, splits, warps, stages)


def _choose_splits(wanted: int, programs: int, max_context: int) -> int:
    """Among how many the keys of each of so many programs are divided, if so many are wanted."""
    return min(_MAX_SPLITS, power_of_2(-(-wanted // programs)), max(1, power_of_2(max_context // _MIN_SPLIT_KEYS)))
