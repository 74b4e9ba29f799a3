"""Choice of tokens and logprobs in Triton, a program per row, without sorting and without waiting for the host.

The same rules and random numbers as the reference. Where that walks down a sorted row, here a threshold is sought by halving:
with F(t) the weight of all that is above t, the place in the order where the weights before it reach x is the least t with
F(t) <= x. Logits are compared as integers of the same order (`_key`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.reference import sampling as reference
from minivllm.kernels.triton.launch import power_of_2

_BLOCK = 4096
_CELLS = 128  # that a program penalizes
_MASKED = 1024  # columns that a program masks
_CANDIDATES = 1024  # of a row's top k that are held in registers; with more the row is read again and again
_BITS = {torch.float32: 32, torch.bfloat16: 16, torch.float16: 19}  # of a key in use: sign, exponent and fraction of the fp32


@triton.jit
def _mix(x):
    """As in the reference."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _uniform(seed, position, attempt):
    """fp64 in [0, 1)."""
    mixed = _mix(_mix(seed.to(tl.uint64, bitcast=True)) + position.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15)
    mixed = _mix(mixed + attempt.to(tl.uint64) * 0xD1342543DE82EF95)
    return (mixed >> 12).to(tl.float64) * 2.220446049250313e-16


@triton.jit
def _key(x, BITS: tl.constexpr):
    """int64 in the order of the fp32 x, of its BITS highest bits."""
    bits = x.to(tl.uint32, bitcast=True)
    ordered = tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    return (ordered >> (32 - BITS)).to(tl.int64)


@triton.jit
def _load(logits, columns, mask):
    return tl.load(logits + columns, mask=mask, other=-float("inf")).to(tl.float32)


@triton.jit
def _greatest(logits, num_columns, BLOCK: tl.constexpr):
    """The greatest value, the first column that has it, and whether there is a NaN."""
    at = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    where = at
    broken = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, num_columns, BLOCK):
        columns = begin + at
        x = _load(logits, columns, columns < num_columns)
        broken = broken | (x != x).to(tl.int32)
        where = tl.where(x > best, columns, where)
        best = tl.where(x > best, x, best)
    greatest = tl.max(best, 0)
    return greatest, tl.min(tl.where(best == greatest, where, 0x7FFFFFFF), 0), tl.max(broken, 0)


@triton.jit
def _kth(logits, num_columns, k, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """The k-th greatest key, and how many of those equal to it are among the k. Digit by digit, by counting."""
    at = tl.arange(0, BLOCK)
    digits = tl.arange(0, 256)
    found = tl.zeros((), tl.int64)
    left = k.to(tl.int32)
    for step in range(1, (BITS + 15) // 8):
        shift = ((BITS + 7) // 8 - step) * 8
        counts = tl.zeros((256,), tl.int32)
        for begin in range(0, num_columns, BLOCK):
            columns = begin + at
            key = _key(_load(logits, columns, columns < num_columns), BITS)
            candidates = (columns < num_columns) & (key >> (shift + 8) == found)
            counts += tl.histogram(((key >> shift) & 255).to(tl.int32), 256, mask=candidates)
        above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
        here = (above < left) & (left <= above + counts)
        found = found * 256 + tl.sum(tl.where(here, digits, 0), 0)
        left -= tl.sum(tl.where(here, above, 0), 0)
    return found, left


@triton.jit
def _collect(logits, scratch, num_columns, lowest, ties, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """The columns of keys above `lowest`, and of the first `ties` equal to it, in order."""
    at = tl.arange(0, BLOCK)
    count = 0
    equals = 0
    for begin in range(0, num_columns, BLOCK):
        columns = begin + at
        inside = columns < num_columns
        key = _key(_load(logits, columns, inside), BITS)
        equal = (inside & (key == lowest)).to(tl.int32)
        kept = (inside & (key > lowest)) | ((equal != 0) & (equals + tl.cumsum(equal, 0) <= ties))
        tl.store(scratch + count + tl.cumsum(kept.to(tl.int32), 0) - 1, columns, mask=kept)
        count += tl.sum(kept.to(tl.int32), 0)
        equals += tl.sum(equal, 0)
    tl.debug_barrier()  # what some threads have stored, others read
    return count


@triton.jit
def _candidates(logits, columns, inside, best, inverse, min_p, lowest, BITS: tl.constexpr):
    """Keys and weights; no weight where the key is below `lowest`."""
    x = _load(logits, columns, inside)
    key = _key(x, BITS)
    weight = tl.exp((x - best) * inverse)
    return key, tl.where(inside & (key >= lowest) & (weight.to(tl.float64) >= min_p), weight, 0.0)


@triton.jit
def _above(
    key, weight, logits, num_columns, best, inverse, min_p, lowest, threshold,
    HELD: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weight of all that is above `threshold`: of what `key` and `weight` hold, or of the row if it holds too many."""
    if HELD:
        above = tl.sum(tl.where(key > threshold, weight, 0.0).to(tl.float64), 0)
    else:
        above = tl.zeros((), tl.float64)
        for begin in range(0, num_columns, BLOCK):
            columns = begin + tl.arange(0, BLOCK)
            keys, weights = _candidates(logits, columns, columns < num_columns, best, inverse, min_p, lowest, BITS)
            above += tl.sum(tl.where(keys > threshold, weights, 0.0).to(tl.float64), 0)
    return above


@triton.jit
def _threshold(
    key, weight, logits, num_columns, best, inverse, min_p, lowest, limit, strict,
    HELD: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The least key with less above it than `limit`, or if not `strict`, no more; and what is above that."""
    low = lowest
    high = _key(best, BITS)
    while low < high:
        middle = (low + high) >> 1
        above = _above(key, weight, logits, num_columns, best, inverse, min_p, lowest, middle, HELD, BITS, BLOCK)
        if (above < limit) | ((above == limit) & (strict == 0)):
            high = middle
        else:
            low = middle + 1
    return high, _above(key, weight, logits, num_columns, best, inverse, min_p, lowest, high, HELD, BITS, BLOCK)


@triton.jit
def _equal(
    key, weight, column, logits, num_columns, best, inverse, min_p, lowest, wanted, n,
    HELD: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """How many have the key `wanted`, the weight of each, and the column of the n-th."""
    count = tl.zeros((), tl.int32)
    each = tl.zeros((), tl.float32)
    found = tl.zeros((), tl.int32)
    if HELD:
        same = ((key == wanted) & (weight > 0)).to(tl.int32)
        count = tl.sum(same, 0)
        each = tl.max(tl.where(same != 0, weight, 0.0), 0)
        found = tl.max(tl.where((same != 0) & (tl.cumsum(same, 0) == n + 1), column, 0), 0)
    else:
        for begin in range(0, num_columns, BLOCK):
            columns = begin + tl.arange(0, BLOCK)
            keys, weights = _candidates(logits, columns, columns < num_columns, best, inverse, min_p, lowest, BITS)
            same = ((keys == wanted) & (weights > 0)).to(tl.int32)
            found = tl.maximum(found, tl.max(tl.where((same != 0) & (count + tl.cumsum(same, 0) == n + 1), columns, 0), 0))
            each = tl.maximum(each, tl.max(tl.where(same != 0, weights, 0.0), 0))
            count += tl.sum(same, 0)
    return count, each.to(tl.float64), found


@triton.jit
def _of_order(
    key, weight, column, logits, num_columns, top_p, min_p, best, inverse, lowest, uniform,
    HELD: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Top-p, then a draw, both by the order of the weights."""
    row = _above(key, weight, logits, num_columns, best, inverse, min_p, lowest, lowest - 1, HELD, BITS, BLOCK)
    limit = top_p * row
    bound, above = _threshold(
        key, weight, logits, num_columns, best, inverse, min_p, lowest, limit, 1, HELD, BITS, BLOCK
    )  # fmt: skip
    count, each, _ = _equal(
        key, weight, column, logits, num_columns, best, inverse, min_p, lowest, bound, 0, HELD, BITS, BLOCK
    )  # fmt: skip
    num_kept = tl.minimum(count, tl.maximum(1, tl.ceil((limit - above) / each).to(tl.int32)))
    target = uniform * (above + num_kept * each)
    drawn, above = _threshold(
        key, weight, logits, num_columns, best, inverse, min_p, bound, target, 0, HELD, BITS, BLOCK
    )  # fmt: skip
    count, each, _ = _equal(
        key, weight, column, logits, num_columns, best, inverse, min_p, lowest, drawn, 0, HELD, BITS, BLOCK
    )  # fmt: skip
    n = tl.minimum(count - 1, ((target - above) / each).to(tl.int32))
    _, _, token = _equal(
        key, weight, column, logits, num_columns, best, inverse, min_p, lowest, drawn, n, HELD, BITS, BLOCK
    )  # fmt: skip
    return token


@triton.jit
def _of_top(
    logits, scratch, num_columns, k, top_p, min_p, best, inverse, uniform,
    BITS: tl.constexpr, BLOCK: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Only the k greatest are looked at."""
    lowest, ties = _kth(logits, num_columns, k, BITS, BLOCK)
    token = tl.zeros((), tl.int32)
    if k <= CANDIDATES:
        count = _collect(logits, scratch, num_columns, lowest, ties, BITS, BLOCK)
        index = tl.arange(0, CANDIDATES)
        column = tl.load(scratch + index, mask=index < count, other=0)
        key, weight = _candidates(logits, column, index < count, best, inverse, min_p, lowest, BITS)
        token = _of_order(
            key, weight, column, logits, num_columns, top_p, min_p, best, inverse, lowest, uniform, True, BITS, BLOCK
        )  # fmt: skip
    else:
        token = _of_order(
            0, 0, 0, logits, num_columns, top_p, min_p, best, inverse, lowest, uniform, False, BITS, BLOCK
        )  # fmt: skip
    return token


@triton.jit
def _weights(logits, columns, num_columns, best, inverse, min_p, floor):
    inside = columns < num_columns
    weight = tl.exp((_load(logits, columns, inside) - best) * inverse)
    return tl.where(inside & (weight.to(tl.float64) >= min_p) & (weight > floor), weight, 0.0)


@triton.jit
def _total(logits, num_columns, best, inverse, min_p, floor, BLOCK: tl.constexpr):
    total = tl.zeros((), tl.float64)
    for begin in range(0, num_columns, BLOCK):
        weight = _weights(logits, begin + tl.arange(0, BLOCK), num_columns, best, inverse, min_p, floor)
        total += tl.sum(weight.to(tl.float64), 0)
    return total


@triton.jit
def _draw(logits, num_columns, best, inverse, min_p, floor, target, BLOCK: tl.constexpr):
    """The first column where the sum of weights from the left exceeds `target`."""
    found = tl.full((), -1, tl.int32)
    final = tl.zeros((), tl.int32)  # the last with a weight, should rounding keep the sum below the target
    running = tl.zeros((), tl.float64)
    begin = 0
    while (begin < num_columns) & (found < 0):
        columns = begin + tl.arange(0, BLOCK)
        weight = _weights(logits, columns, num_columns, best, inverse, min_p, floor)
        final = tl.maximum(final, tl.max(tl.where(weight > 0, columns, 0), 0))
        total = tl.sum(weight.to(tl.float64), 0)
        if running + total > target:
            beyond = (running + tl.cumsum(weight.to(tl.float64), 0) > target) & (weight > 0)
            first = tl.min(tl.where(beyond, columns, 0x7FFFFFFF), 0)
            found = tl.where(first == 0x7FFFFFFF, final, first)
        running += total
        begin += BLOCK
    return tl.where(found < 0, final, found)


@triton.jit
def _of_all(logits, num_columns, top_p, min_p, best, inverse, seed, position, BLOCK: tl.constexpr):
    """Top-p by rejection; see the reference."""
    floor = tl.full((), -1.0, tl.float32)
    total = _total(logits, num_columns, best, inverse, min_p, floor, BLOCK)
    limit = top_p * total
    token = tl.full((), -1, tl.int32)
    attempt = tl.zeros((), tl.int64)
    pending = 1
    while pending != 0:
        target = _uniform(seed, position, attempt) * total
        token = _draw(logits, num_columns, best, inverse, min_p, floor, target, BLOCK)
        pending = 0
        if top_p < 1:
            floor = tl.exp((tl.load(logits + token).to(tl.float32) - best) * inverse)
            total = _total(logits, num_columns, best, inverse, min_p, floor, BLOCK)
            pending = (total >= limit).to(tl.int32)
        attempt += 1
    return token


@triton.jit
def choose_kernel(
    out_ptr, logits_ptr, row_ptr, params_ptr, seed_ptr, scratch_ptr, row_stride, num_columns,
    SOME: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, CANDIDATES: tl.constexpr,
    BROKEN_ROW: tl.constexpr, EMPTY_ROW: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    row = tl.load(row_ptr + at) if SOME else at
    logits = logits_ptr + row * row_stride
    best, token, broken = _greatest(logits, num_columns, BLOCK)
    temperature = tl.load(params_ptr + at * 4)
    k = tl.load(params_ptr + at * 4 + 1)
    top_p = tl.load(params_ptr + at * 4 + 2)
    min_p = tl.load(params_ptr + at * 4 + 3)
    seed = tl.load(seed_ptr + at * 2)
    position = tl.load(seed_ptr + at * 2 + 1)
    if (broken != 0) | (best == float("inf")):
        token = tl.full((), BROKEN_ROW, tl.int32)
    elif best == -float("inf"):
        token = tl.full((), EMPTY_ROW, tl.int32)
    elif temperature > 0:
        inverse = (1 / temperature).to(tl.float32)
        if (k > 0) & (k < num_columns):
            uniform = _uniform(seed, position, tl.zeros((), tl.int64))
            token = _of_top(
                logits, scratch_ptr + at * CANDIDATES, num_columns, k, top_p, min_p, best, inverse, uniform,
                BITS, BLOCK, CANDIDATES,
            )  # fmt: skip
        else:
            token = _of_all(logits, num_columns, top_p, min_p, best, inverse, seed, position, BLOCK)
    tl.store(out_ptr + at, token.to(tl.int64))


@triton.jit
def logprob_kernel(
    value_ptr, sum_ptr, rank_ptr, logits_ptr, row_ptr, token_ptr, row_stride, num_columns,
    SOME: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token's own logit, the logarithm of the sum of exponentials, and the token's rank."""
    at = tl.program_id(0).to(tl.int64)
    row = tl.load(row_ptr + at) if SOME else at
    logits = logits_ptr + row * row_stride
    own = tl.load(logits + tl.load(token_ptr + at)).to(tl.float32)
    best, _, broken = _greatest(logits, num_columns, BLOCK)
    base = tl.where(best == -float("inf"), 0.0, best)
    sums = tl.zeros((BLOCK,), tl.float32)
    ahead = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, num_columns, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        x = _load(logits, columns, columns < num_columns)
        sums += tl.exp(x - base)
        ahead += (x > own).to(tl.int32)
    total = base + tl.log(tl.sum(sums, 0))
    tl.store(value_ptr + at, own)
    tl.store(sum_ptr + at, tl.where((broken != 0) | (best == float("inf")), float("nan"), total))
    tl.store(rank_ptr + at, tl.sum(ahead, 0).to(tl.int64) + 1)


@triton.jit(do_not_specialize=["num_cells"])
def penalty_kernel(logits_ptr, cell_ptr, count_ptr, owner_ptr, penalty_ptr, num_cells, BLOCK: tl.constexpr):
    """Grid: blocks of cells."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < num_cells
    logits = logits_ptr + tl.load(cell_ptr + at, mask=mask, other=0)
    penalties = penalty_ptr + tl.load(owner_ptr + at, mask=mask, other=0) * 3
    count = tl.load(count_ptr + at, mask=mask, other=0.0)
    value = tl.load(logits, mask=mask, other=0.0)
    repetition = tl.load(penalties, mask=mask, other=1.0)
    value = tl.where(value > 0, tl.div_rn(value, repetition), value * repetition)
    owed = tl.load(penalties + 1, mask=mask, other=0.0) * count
    owed += tl.where(count > 0, tl.load(penalties + 2, mask=mask, other=0.0), 0.0)
    tl.store(logits, value - owed, mask=mask)


@triton.jit
def mask_kernel(
    out_ptr, logits_ptr, row_ptr, word_ptr, row_stride, num_words, num_columns, SOME: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: rows, blocks of columns."""
    at = tl.program_id(0).to(tl.int64)
    row = tl.load(row_ptr + at) if SOME else at
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_columns
    words = tl.load(word_ptr + at * num_words + columns // 64, mask=inside, other=0)
    x = tl.load(logits_ptr + row * row_stride + columns, mask=inside, other=0.0).to(tl.float32)
    allowed = (words >> (columns % 64).to(tl.int64)) & 1 != 0
    tl.store(out_ptr + at * num_columns + columns, tl.where(allowed, x, -float("inf")), mask=inside)


def choose(logits: Tensor, rows: Tensor | None, params: Tensor, seeds: Tensor, masks: Tensor | None = None) -> Tensor:
    """See reference.sampling."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    if masks is not None:
        logits, rows = _masked(logits, rows, masks), None
    num_rows, num_columns = params.shape[0], logits.shape[1]
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        scratch = torch.empty((num_rows, _CANDIDATES), dtype=torch.int32, device=logits.device)
        block = min(_BLOCK, power_of_2(num_columns))
        choose_kernel[(num_rows,)](
            out, logits, out if rows is None else rows, params.contiguous(), seeds.contiguous(), scratch, logits.stride(0),
            num_columns, rows is not None, _BITS[logits.dtype], block, _CANDIDATES, reference.BROKEN,
            reference.NOTHING_LEFT, num_warps=max(1, min(16, block // 256)),
        )  # fmt: skip
    return out


def _masked(logits: Tensor, rows: Tensor | None, masks: Tensor) -> Tensor:
    """A copy of the rows, with -inf where a mask has 0."""
    num_rows, num_columns = masks.shape[0], logits.shape[1]
    out = torch.empty((num_rows, num_columns), dtype=logits.dtype, device=logits.device)
    if num_rows:
        mask_kernel[(num_rows, triton.cdiv(num_columns, _MASKED))](
            out, logits, masks if rows is None else rows, masks.contiguous(), logits.stride(0), masks.shape[1], num_columns,
            rows is not None, _MASKED, num_warps=4,
        )  # fmt: skip
    return out


def logprobs(logits: Tensor, rows: Tensor | None, tokens: Tensor, count: int, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """See reference.sampling. The alternatives are found by torch.topk."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    num_rows, device = tokens.shape[0], logits.device
    own, log_sum = torch.empty((2, num_rows), dtype=torch.float32, device=device)
    ranks = torch.empty(num_rows, dtype=torch.int64, device=device)
    if num_rows:
        block = min(_BLOCK, power_of_2(vocab_size))
        logprob_kernel[(num_rows,)](
            own, log_sum, ranks, logits, tokens if rows is None else rows, tokens, logits.stride(0), vocab_size,
            rows is not None, block, num_warps=max(1, min(16, block // 256)),
        )  # fmt: skip
    top, ids = (logits if rows is None else logits[rows])[:, :vocab_size].topk(count)
    values = torch.cat((own[:, None], top.float()), dim=1) - log_sum[:, None]
    return values, torch.cat((tokens[:, None], ids), dim=1), ranks


def penalize(logits: Tensor, cells: Tensor, counts: Tensor, owners: Tensor, penalties: Tensor) -> None:
    """See reference.sampling."""
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        raise ValueError(f"logits must be contiguous float32, got {logits.dtype} {list(logits.shape)} {logits.stride()}")
    if len(cells):
        penalty_kernel[(triton.cdiv(len(cells), _CELLS),)](
            logits, cells, counts, owners, penalties.contiguous(), len(cells), _CELLS, num_warps=4
        )
