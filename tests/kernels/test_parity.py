"""Every op that a compiled kernel family shares with the torch reference gives the same results, for every instruction set."""

import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from minivllm.kernels import OPS, extension_error, ops_for
from minivllm.kernels import reference as reference_package
from minivllm.kernels.codes import CODES
from minivllm.kernels.kv_pages import row_width
from minivllm.kernels.reference.kv_write import write_kv
from minivllm.kernels.texts import Texts

pytestmark = pytest.mark.skipif(extension_error() is not None, reason="the extension minivllm._cpu is not built")

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# Both sides round at the same places, but fp32 sums in another order may move a result over one rounding step.
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}

# A case runs one op of a family on inputs that it copies, and returns everything that the op writes.
Case = Callable[[ModuleType], tuple[Tensor, ...]]


def randn(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, -1 if dtype == torch.int8 else torch.nan, dtype=dtype)  # four bytes of -1 are a NaN


# ---- norm


def rms_norm_cases(dtype: torch.dtype) -> Iterator[Case]:
    for rows, cols in itertools.product((0, 1, 3, 70), (1, 16, 63, 576, 1000)):
        x, weight = randn(rows, cols, dtype=dtype) * 3, randn(cols, dtype=dtype)
        yield lambda norm, x=x, w=weight: (norm.rms_norm(x, w, 1e-5),)
        yield lambda norm, x=x, w=weight: (norm.rms_norm(x, w, 1e-6, out=poisoned(*x.shape, dtype=x.dtype)),)
        yield lambda norm, x=x, w=weight: (norm.rms_norm(x, w, 1e-5, plus_one=True),)
    heads = randn(5, 4, 64, dtype=dtype)
    yield lambda norm: (norm.rms_norm(heads[:, 1:3], torch.ones(64, dtype=dtype), 1e-6),)
    yield lambda norm: (norm.rms_norm(heads.flatten(1)[:, 64:192], heads[0, :2].flatten(), 1e-6),)


def add_rms_norm_cases(dtype: torch.dtype) -> Iterator[Case]:
    for rows, cols in itertools.product((0, 1, 3, 70), (1, 16, 63, 576)):
        x, residual, weight = (randn(*shape, dtype=dtype) for shape in ((rows, cols), (rows, cols), (cols,)))

        def run(norm: ModuleType, x: Tensor = x, residual: Tensor = residual, weight: Tensor = weight) -> tuple[Tensor, ...]:
            total = residual.clone()
            return norm.add_rms_norm(x, total, weight, 1e-5), total, norm.add_rms_norm(x, total, weight, 1e-5, plus_one=True)

        yield run


def layer_norm_cases(dtype: torch.dtype) -> Iterator[Case]:
    for rows, cols, plus_one in itertools.product((0, 1, 70), (16, 63, 576), (False, True)):
        x, residual, weight, bias = (randn(*s, dtype=dtype) for s in ((rows, cols), (rows, cols), (cols,), (cols,)))
        for w, b in ((weight, bias), (weight, None), (None, None)):

            def run(
                norm: ModuleType, x: Tensor = x, residual: Tensor = residual, w: Tensor | None = w, b: Tensor | None = b,
                plus_one: bool = plus_one,
            ) -> tuple[Tensor, ...]:  # fmt: skip
                total = residual.clone()
                added = norm.add_layer_norm(x, total, w, b, 1e-5, plus_one=plus_one)
                return added, total, norm.layer_norm(x + 3, w, b, 1e-5, plus_one=plus_one)

            yield run
    heads = randn(5, 4, 63, dtype=dtype)
    yield lambda norm: (norm.layer_norm(heads[:, 1:3], heads[0, :2].clone(), None, 1e-6),)


# ---- rotary


def apply_rotary_cases(dtype: torch.dtype) -> Iterator[Case]:
    shapes = ((0, 64, 64), (1, 64, 64), (33, 64, 64), (5, 128, 32), (7, 80, 20), (4, 16, 16), (300, 64, 64))
    for (tokens, head_dim, rotary_dim), interleaved in itertools.product(shapes, (False, True)):
        heads, kv_heads = 9, 3
        qkv = randn(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
        angles = torch.rand(512, rotary_dim // 2) * 6
        cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
        positions = torch.randint(0, 512, (tokens,))

        def run(
            rotary: ModuleType,
            qkv: Tensor = qkv,
            positions: Tensor = positions,
            cos_sin: Tensor = cos_sin,
            head_dim: int = head_dim,
            interleaved: bool = interleaved,
        ) -> tuple[Tensor, ...]:
            packed = qkv.clone().view(qkv.shape[0], 15, head_dim)
            rotary.apply_rotary(packed[:, :9], packed[:, 9:12], positions, cos_sin, interleaved=interleaved)
            return (packed,)

        yield run


# ---- activation


def gate_cases(dtype: torch.dtype, run: Callable[[ModuleType, Tensor, Tensor | None], Tensor]) -> Iterator[Case]:
    for rows, cols in itertools.product((0, 1, 5, 40), (1, 16, 77, 1536)):
        x = randn(rows, 2 * cols, dtype=dtype) * 4
        yield lambda activation, x=x: (run(activation, x, None),)
        yield lambda activation, x=x, cols=cols: (run(activation, x, poisoned(x.shape[0], cols, dtype=x.dtype)),)
    wide = torch.tensor([[-200.0, -90.0, -20.0, -1e-4, 0.0, 1e-4, 20.0, 90.0, 200.0] + [1.0] * 9], dtype=dtype)
    yield lambda activation: (run(activation, wide, None),)


def silu_and_mul_cases(dtype: torch.dtype) -> Iterator[Case]:
    yield from gate_cases(dtype, lambda activation, x, out: activation.silu_and_mul(x, out))


def gelu_and_mul_cases(dtype: torch.dtype) -> Iterator[Case]:
    yield from gate_cases(dtype, lambda activation, x, out: activation.gelu_and_mul(x, out))
    yield from gate_cases(dtype, lambda activation, x, out: activation.gelu_and_mul(x, out, approximate="none"))


def activate_cases(dtype: torch.dtype) -> Iterator[Case]:
    for rows, cols in ((0, 16), (5, 77), (40, 1536)):
        x = randn(rows, cols, dtype=dtype) * 4
        for kind in ("silu", "gelu", "gelu_tanh", "relu", "relu2"):
            yield lambda activation, x=x, kind=kind: (activation.activate(x, kind),)


# ---- elementwise


def scale_cases(dtype: torch.dtype) -> Iterator[Case]:
    for rows, cols in ((0, 16), (5, 77), (40, 1536)):
        x = randn(rows, cols, dtype=dtype)
        yield lambda elementwise, x=x: (elementwise.scale(x.clone(), 0.37),)


def add_cases(dtype: torch.dtype) -> Iterator[Case]:
    for rows, cols in ((0, 16), (5, 77), (40, 1536)):
        x, y = randn(rows, cols, dtype=dtype), randn(rows, cols, dtype=dtype)
        yield lambda elementwise, x=x, y=y: (elementwise.add(x.clone(), y),)


def indices_in_cases(dtype: torch.dtype) -> Iterator[Case]:
    for count in (0, 1, 50):
        indices = torch.randint(0, 100, (count,))
        yield lambda elementwise, i=indices: (elementwise.indices_in(i, 20, 60), elementwise.indices_in(i, 0, 100))


def clear_outside_cases(dtype: torch.dtype) -> Iterator[Case]:
    for rows, cols in itertools.product((0, 1, 50), (1, 63)):
        x, indices = poisoned(rows, cols, dtype=dtype), torch.randint(0, 100, (rows,))
        x[(indices >= 20) & (indices < 60)] = 1.5
        yield lambda elementwise, x=x, i=indices: (elementwise.clear_outside(x.clone(), i, 20, 60),)


# ---- KV cache


def write_kv_cases(dtype: torch.dtype) -> Iterator[Case]:
    shapes = ((0, 3, 16, 64), (1, 1, 1, 16), (50, 3, 16, 64), (9, 2, 7, 33))
    for (tokens, kv_heads, block_size, head_dim), cache in itertools.product(
        shapes, (*FLOATS, torch.int8, torch.float8_e4m3fn)
    ):
        packed = randn(tokens, 2 * kv_heads + 1, head_dim, dtype=dtype)
        num_blocks = 1 + 3 * tokens // block_size
        slots = torch.randperm(num_blocks * block_size)[:tokens]
        slots[1::5] = -1

        def run(
            kv_write: ModuleType,
            packed: Tensor = packed,
            slots: Tensor = slots,
            shape: tuple[int, ...] = (2, num_blocks, kv_heads, block_size, row_width(head_dim, cache)),
            cache: torch.dtype = cache,
        ) -> tuple[Tensor, ...]:
            kv = poisoned(*shape, dtype=cache)
            kv_write.write_kv(packed[:, : shape[2]] * 100, packed[:, shape[2] : 2 * shape[2]], kv, slots)
            return (kv.float() if kv.dtype == torch.float8_e4m3fn else kv,)

        yield run


# ---- attention


def paged_case(
    queries: list[int],
    contexts: list[int],
    *,
    dtype: torch.dtype,
    cache: torch.dtype | None = None,
    heads: int = 9,
    kv_heads: int = 3,
    head_dim: int = 64,
    block_size: int = 16,
    window: int = 0,
    soft_cap: float = 0.0,
    strided: bool = False,
    slopes: bool = False,
    sinks: bool = False,
    scales: tuple[float, float] = (1.0, 1.0),
    begins: dict[int, tuple[int, int]] | None = None,
) -> Case:
    """Sequences in shuffled blocks of a pool; every cache row and table entry that no query may see is poison.

    begins: {sequence: (an earlier one, how many tokens of its blocks it begins with)}.
    """
    lengths = torch.tensor(contexts, dtype=torch.int32)
    needed = [-(-context // block_size) for context in contexts]
    cache = cache or dtype
    kv = poisoned(2, sum(needed) + 3, kv_heads, block_size, row_width(head_dim, cache), dtype=cache)
    free = torch.randperm(kv.shape[1]).tolist()
    tables = torch.full((len(contexts), max(needed, default=0) + 2), 2**30, dtype=torch.int32)
    for seq, context in enumerate(contexts):
        oldest = max(0, context - queries[seq] - window + 1) if window and not begins else 0
        if begins and seq in begins:
            earlier, oldest = begins[seq]
            tables[seq, : oldest // block_size] = tables[earlier, : oldest // block_size]
        positions = torch.arange(oldest, context)
        for block in (positions // block_size).unique():
            tables[seq, block] = free.pop()
        slots = tables[seq, positions // block_size].long() * block_size + positions % block_size
        write_kv(*torch.randn(2, len(positions), kv_heads, head_dim), kv, slots)
    start = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32)
    packed = randn(int(start[-1]), heads + 2 if strided else heads, head_dim, dtype=dtype)
    scale = head_dim**-0.5
    options: dict[str, Any] = {"sliding_window": window, "soft_cap": soft_cap, "k_scale": scales[0], "v_scale": scales[1]}
    if slopes:
        options["alibi_slopes"] = 2.0 ** -torch.linspace(1, 8, heads)
    if sinks:
        options["sinks"] = torch.randn(heads) * 2

    def run(attention: ModuleType) -> tuple[Tensor, ...]:
        q = packed[:, :heads]
        out = poisoned(*q.shape, dtype=dtype)
        attention.paged_attention(q, kv, tables, start, lengths, scale, out, **options)
        return out, attention.paged_attention(q, kv, tables, start, lengths, scale, **options)

    return run


def paged_attention_cases(dtype: torch.dtype) -> Iterator[Case]:
    yield from paged_shapes(dtype)
    yield from paged_shapes(dtype, cache=torch.int8)
    yield from paged_shapes(dtype, cache=torch.float8_e4m3fn)
    for cache in FLOATS:
        yield paged_case([30, 1], [130, 200], dtype=dtype, cache=cache)
    yield paged_case([30, 1], [130, 200], dtype=dtype, slopes=True, sinks=True, scales=(0.5, 2.0))
    yield from shared_beginnings(dtype)


def shared_beginnings(dtype: torch.dtype) -> Iterator[Case]:
    case = partial(paged_case, dtype=dtype)
    three, all_like_first = {1: (0, 640), 2: (0, 640)}, dict.fromkeys(range(1, 30), (0, 320))
    yield case([1, 1, 1], [700, 656, 900], begins=three, heads=12, kv_heads=2, head_dim=96, sinks=True, soft_cap=2.0)
    yield case([1, 1, 1], [700, 655, 900], begins=three, heads=8, kv_heads=8, head_dim=20, block_size=5)
    yield case([1, 1, 1], [700, 655, 900], begins=three, slopes=True)
    yield case([1, 1, 1], [700, 655, 900], begins=three, window=100)
    yield case([1, 1, 1], [640, 641, 1], begins={1: (0, 640)})  # all blocks of the one are also the other's
    yield case([1] * 30, [321 + 9 * seq for seq in range(30)], begins=all_like_first, heads=14, kv_heads=2, strided=True)
    # Two kinds by turns, and among one of them some that begin alike for longer; prefill and strangers between them.
    begins = {2: (0, 320), 4: (1, 640), 5: (0, 512), 6: (1, 640), 7: (5, 768), 8: (5, 768)}
    for cache in (dtype, torch.int8, torch.float8_e4m3fn):
        yield case([1] * 30, [321 + seq for seq in range(30)], begins=all_like_first, cache=cache)
        yield case(
            [1, 1, 1, 20, 1, 1, 5, 1, 1, 1], [600, 660, 330, 400, 700, 800, 650, 801, 790, 9], begins=begins, cache=cache
        )


def whole_attention_cases(dtype: torch.dtype) -> Iterator[Case]:
    for lengths, heads, head_dim, window in (
        ([], 2, 16, 0), ([1], 1, 64, 0), ([7, 1, 70, 3, 70, 0, 12], 3, 32, 0), ([200, 5], 2, 20, 0), ([90, 2], 2, 64, 9),
        ([65, 64, 8], 1, 48, 64),
    ):  # fmt: skip
        texts = Texts(torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32))
        packed = randn(sum(lengths), 3, heads, head_dim, dtype=dtype)

        def run(attention: ModuleType, x: Tensor = packed, texts: Texts = texts, window: int = window) -> tuple[Tensor, ...]:
            out = poisoned(len(x), *x.shape[2:], dtype=x.dtype)
            attention.whole_attention(*x.unbind(1), texts, 0.3, out, window=window)
            return out, attention.whole_attention(*x.unbind(1), texts, 0.3, window=window)

        yield run


def paged_shapes(dtype: torch.dtype, **kept: torch.dtype) -> Iterator[Case]:
    yield paged_case([], [], dtype=dtype, **kept)
    yield paged_case([1], [1], dtype=dtype, **kept)
    yield paged_case([1, 1, 1], [1, 17, 600], dtype=dtype, **kept)
    yield paged_case([40], [40], dtype=dtype, **kept)
    yield paged_case([40, 1, 2, 1], [90, 30, 2, 1500], dtype=dtype, **kept, sinks=True)
    yield paged_case([40, 1, 2, 1], [90, 30, 2, 1500], dtype=dtype, **kept, slopes=True)
    yield paged_case(
        [40, 1], [90, 30], dtype=dtype, **kept, heads=4, kv_heads=4, head_dim=20, window=9, sinks=True, slopes=True
    )
    yield paged_case([70, 1, 5, 0, 33], [150, 90, 5, 20, 33], dtype=dtype, **kept, strided=True)
    yield paged_case([2, 1], [1300, 40], dtype=dtype, **kept, heads=2, kv_heads=2)
    for heads, kv_heads in ((1, 1), (2, 1), (4, 1), (5, 1), (12, 2), (14, 2), (8, 1), (16, 1), (71, 1)):
        yield paged_case([1, 3], [33, 21], dtype=dtype, **kept, heads=heads, kv_heads=kv_heads)
    for block_size in (1, 5, 32, 128):
        yield paged_case([3, 1], [70, 130], dtype=dtype, **kept, block_size=block_size)
    for head_dim in (16, 40, 80, 100, 128, 256):
        yield paged_case([20, 1], [75, 66], dtype=dtype, **kept, heads=4, kv_heads=2, head_dim=head_dim)
    for window in (1, 7, 64, 100):
        yield paged_case([30, 1, 2, 1], [130, 200, 90, 5], dtype=dtype, **kept, window=window)
    yield paged_case([30, 1, 2], [130, 200, 90], dtype=dtype, **kept, soft_cap=2.0)
    yield paged_case([1] * 9, [1, 2, 15, 16, 17, 31, 129, 257, 300], dtype=dtype, **kept)  # KV heads together
    yield paged_case([1] * 9, [100] * 9, dtype=dtype, **kept, heads=16, kv_heads=4, head_dim=96, window=60)


def latent_case(
    queries: list[int], contexts: list[int], *, dtype: torch.dtype, cache: torch.dtype | None = None, heads: int = 3,
    rank: int = 32, tail: int = 16, block_size: int = 16,
) -> Case:  # fmt: skip
    """As paged_case, with one vector a token."""
    needed = [-(-context // block_size) for context in contexts]
    rows = poisoned(1, sum(needed) + 3, 1, block_size, rank + tail, dtype=cache or dtype)
    free = torch.randperm(rows.shape[1]).tolist()
    tables = torch.full((len(contexts), max(needed, default=0) + 2), 2**30, dtype=torch.int32)
    for seq, context in enumerate(contexts):
        for block in range(needed[seq]):
            tables[seq, block] = free.pop()
            filled = min(block_size, context - block * block_size)
            rows[0, int(tables[seq, block]), 0, :filled] = randn(filled, rank + tail, dtype=cache or dtype)
    start = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32)
    q, lengths = randn(int(start[-1]), heads, rank + tail, dtype=dtype), torch.tensor(contexts, dtype=torch.int32)
    return lambda attention: (attention.latent_attention(q, rows, tables, start, lengths, 0.2, rank),)


def latent_attention_cases(dtype: torch.dtype) -> Iterator[Case]:
    yield latent_case([], [], dtype=dtype)
    yield latent_case([1, 1], [1, 70], dtype=dtype)
    yield latent_case([40, 1, 3], [60, 5, 3], dtype=dtype, block_size=5)
    yield latent_case([1] * 9, [100 + 70 * seq for seq in range(9)], dtype=dtype, heads=2, rank=512, tail=64)
    for cache in FLOATS:
        yield latent_case([70, 1], [90, 600], dtype=dtype, cache=cache, heads=16, rank=128, tail=32)


# ---- linear


def linear_cases(dtype: torch.dtype) -> Iterator[Case]:
    shapes = ((576, 960), (64, 32), (63, 33), (1, 1), (100, 65), (1536, 576))
    for (k, n), with_bias in itertools.product(shapes, (False, True)):
        weight, bias = randn(n, k, dtype=dtype) * k**-0.5, randn(n, dtype=dtype) if with_bias else None
        for m in (0, 1, 2, 7, 8, 9, 16, 17, 33, 70) + ((300,) if n == 960 else ()):
            wide = randn(m, k + 5, dtype=dtype)
            for x in (wide[:, :k].contiguous(), wide[:, :k]):
                yield lambda gemm, x=x, w=weight, b=bias: (gemm.linear(x, gemm.pack(w), b),)
    batch = randn(2, 3, 576, dtype=dtype)
    yield lambda gemm: (gemm.linear(batch, gemm.pack(torch.eye(576, dtype=dtype)), None),)


def rows_cases(dtype: torch.dtype) -> Iterator[Case]:
    for n, k in ((50, 64), (33, 7), (1, 1)):
        weight = randn(n, k, dtype=dtype)
        for shape in ((0,), (1,), (40,), (2, 3)):
            indices = torch.randint(0, n, shape)
            yield lambda gemm, w=weight, i=indices: (gemm.rows(gemm.pack(w), i),)


def pack_cases(dtype: torch.dtype) -> Iterator[Case]:
    weight = randn(40, 50, dtype=dtype)
    yield lambda gemm: (gemm.rows(gemm.pack(weight.t().contiguous().t()), torch.arange(40)),)


# ---- linear with int8 weights


def int8_linear_cases(dtype: torch.dtype) -> Iterator[Case]:
    for (k, n), with_bias in itertools.product(((576, 960), (64, 32), (63, 33), (1, 1), (100, 65), (1536, 70)), (False, True)):
        weight, bias = randn(n, k, dtype=dtype) * k**-0.5, randn(n, dtype=dtype) if with_bias else None
        weight[n // 2] = 0
        for m in (0, 1, 2, 3, 7, 8, 9, 17, 33) + ((300,) if n == 960 else ()):
            wide = randn(m, k + 5, dtype=dtype)
            wide[::3, k // 2] *= 100  # an outlier
            wide[1::4] = 0
            for x in (wide[:, :k].contiguous(), wide[:, :k]):
                yield lambda gemm, x=x, w=weight, b=bias: (gemm.linear(x, gemm.pack(w), b),)
    batch, extremes = randn(2, 3, 576, dtype=dtype), torch.full((5, 4000), 1.0, dtype=dtype)
    extremes[1], extremes[2:, ::2], extremes[3, 7], extremes[4, 9] = -1.0, -1.0, torch.nan, torch.inf
    yield lambda gemm: (gemm.linear(batch, gemm.pack(torch.eye(576, dtype=dtype))),)
    yield lambda gemm: (gemm.linear(extremes, gemm.pack(extremes[:3]), extremes[0, :3].clone()),)


def int8_rows_cases(dtype: torch.dtype) -> Iterator[Case]:
    for n, k in ((50, 64), (33, 7), (1, 1)):
        weight = randn(n, k, dtype=dtype)
        for shape in ((0,), (1,), (40,), (2, 3)):
            indices = torch.randint(0, n, shape)
            yield lambda gemm, w=weight, i=indices: (gemm.rows(gemm.pack(w), i, w.dtype),)


def int8_pack_cases(dtype: torch.dtype) -> Iterator[Case]:
    weight = randn(40, 50, dtype=dtype)
    weight[3], weight[4], weight[5, 1] = 0, 1e-38, 3e4
    yield lambda gemm: (gemm.rows(gemm.pack(weight.t().contiguous().t()), torch.arange(40), torch.float32),)


# ---- linear with weights in floats of 8 bits


def fp8_weight(n: int, k: int, scales: str) -> tuple[Tensor, Tensor]:
    """`scales`: "whole", "rows", "blocks" or "blocks by row". Powers of 2, so that a weight is exact in every type of float."""
    shape = {"whole": (1,), "rows": (n, 1), "blocks": (-(-n // 128), -(-k // 128)), "blocks by row": (n, -(-k // 128))}[scales]
    powers = torch.randint(-13, -8, shape) - k.bit_length() // 2
    return (torch.randn(n, k) * 20).to(torch.float8_e4m3fn), 2.0**powers


def fp8_rows(m: int, k: int, dtype: torch.dtype) -> Tensor:
    """What rounding to floats of 8 bits leaves as it is."""
    x = (torch.randn(m, k) * 90).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    x[:, ::128] = 448
    return x.to(dtype)


def fp8_linear_cases(dtype: torch.dtype) -> Iterator[Case]:
    sizes = ((576, 960), (128, 32), (63, 33), (1, 1), (200, 300))
    for (k, n), scales in itertools.product(sizes, ("whole", "rows", "blocks", "blocks by row")):
        weight, bias = fp8_weight(n, k, scales), randn(n, dtype=dtype) if n != 32 else None
        for m in (0, 1, 3, 17, 70):
            x = fp8_rows(m, k, dtype)
            yield lambda gemm, x=x, w=weight, b=bias: (gemm.linear(x, gemm.pack(*w, x.dtype), b),)
    batch, broken = fp8_rows(6, k, dtype).view(2, 3, k), fp8_rows(3, k, dtype)
    broken[0, 3], broken[1, 9] = torch.nan, torch.inf
    yield lambda gemm: (gemm.linear(batch, gemm.pack(*weight, dtype)),)
    yield lambda gemm: (gemm.linear(broken, gemm.pack(*weight, dtype)).isfinite(),)


def fp8_rows_cases(dtype: torch.dtype) -> Iterator[Case]:
    for (n, k), scales in itertools.product(((300, 200), (33, 7), (1, 1)), ("whole", "rows", "blocks", "blocks by row")):
        weight, indices = fp8_weight(n, k, scales), torch.randint(0, n, (2, 3))
        yield lambda gemm, w=weight, i=indices: (gemm.rows(gemm.pack(*w, dtype), i, dtype),)


# ---- linear with weights in groups


def random_groups(n: int, k: int, bits: int, group: int = 32) -> tuple[Tensor, Tensor, Tensor, int]:
    values = torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8)
    scales = randn(n, k // group, dtype=torch.float16) * 2.0**-bits * k**-0.5
    least = scales * -(2.0 ** (bits - 1)) + randn(n, k // group, dtype=torch.float16) * 0.1 * k**-0.5
    return values, scales, least, bits


def coded_groups(n: int, k: int, codes: str) -> tuple[Tensor, Tensor, Tensor, int, str]:
    values, scales, least, bits = random_groups(n, k, 8 if codes == "e4m3" else 4)
    if bits == 8:
        values[values & 127 == 127] = 0  # that is NaN
    return values, scales * 0.1, least * 0, bits, codes


def grouped_linear_cases(dtype: torch.dtype) -> Iterator[Case]:
    if dtype != torch.bfloat16:
        return
    for (k, n), codes, m in itertools.product(((576, 960), (32, 33)), CODES, (1, 3, 17)):
        coded, x = coded_groups(n, k, codes), randn(m, k, dtype=dtype)
        yield lambda gemm, x=x, w=coded: (gemm.linear(x, gemm.pack(*w)),)
    some, order = random_groups(70, 96, 4), torch.randperm(96)
    for m in (1, 40):
        x = randn(m, 101, dtype=dtype)[:, :96]
        yield lambda gemm, x=x: (gemm.linear(x, gemm.pack(*some, None, order)),)
    shapes = ((576, 960), (64, 32), (32, 33), (32, 1), (1536, 70))
    for group, (k, n), bits in itertools.product((32, 16), shapes, (4, 8)):
        weight, bias = random_groups(n, k, bits, group), randn(n, dtype=dtype) if n != 32 else None
        for m in (0, 1, 2, 3, 4, 5, 8, 9, 17, 33) + ((300,) if n == 960 else ()):
            wide = randn(m, k + 5, dtype=dtype)
            wide[::3, k // 2] *= 100  # an outlier
            wide[1::4] = 0
            for x in (wide[:, :k].contiguous(), wide[:, :k]):
                yield lambda gemm, x=x, w=weight, b=bias: (gemm.linear(x, gemm.pack(*w), b),)
        batch, broken = randn(2, 2, k, dtype=dtype), randn(3, k, dtype=dtype)
        broken[0, 3] = torch.nan
        yield lambda gemm, x=batch, w=weight: (gemm.linear(x, gemm.pack(*w)),)
        yield lambda gemm, x=broken, w=weight: (gemm.linear(x, gemm.pack(*w)),)


def grouped_rows_cases(dtype: torch.dtype) -> Iterator[Case]:
    if dtype != torch.bfloat16:
        return
    for (n, k), bits, group in itertools.product(((50, 64), (33, 96), (1, 32)), (4, 8), (16, 32)):
        weight = random_groups(n, k, bits, group)
        for shape in ((0,), (1,), (40,), (2, 3)):
            indices = torch.randint(0, n, shape)
            yield lambda gemm, w=weight, i=indices: (gemm.rows(gemm.pack(*w), i, torch.bfloat16),)
    for codes, order in itertools.product(CODES, (None, torch.randperm(96))):
        coded = coded_groups(33, 96, codes)
        yield lambda gemm, w=coded, o=order: (gemm.rows(gemm.pack(*w, o), torch.arange(33), torch.bfloat16),)


def grouped_pack_cases(dtype: torch.dtype) -> Iterator[Case]:
    for bits in (4, 8):
        values, scales, least, _ = random_groups(40, 64, bits)
        weight = (values.t().contiguous().t(), scales.t().contiguous().t(), least, bits)
        yield lambda gemm, w=weight: (gemm.rows(gemm.pack(*w), torch.arange(40), torch.bfloat16),)


# ---- sampling


def distinct_logits(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """No two in a row are equal in any of the types: the order of equal ones is not defined."""
    steps = torch.stack([torch.randperm(columns) for _ in range(rows)])
    return (steps - columns + 0x4000 + 840).to(torch.int16).view(torch.bfloat16).to(dtype)


def choose_cases(dtype: torch.dtype) -> Iterator[Case]:
    options = torch.tensor(
        list(itertools.product((0.0, 0.3, 1.0, 2.0), (0, 1, 20, 300), (1.0, 0.9, 0.4), (0.0, 0.05, 1.0))), dtype=torch.float64
    )
    seeds = torch.randint(-(2**63), 2**63 - 1, (len(options), 2))
    for columns in (1, 63, 64, 65, 1000, 840):
        logits = distinct_logits(len(options), columns + 3, dtype)[:, :columns]
        logits[5::7, ::3] = -torch.inf
        logits[8, :] = -torch.inf
        logits[11, columns // 2], logits[13, 0] = torch.nan, torch.inf
        yield lambda sampling, x=logits: (sampling.choose(x, None, options, seeds),)
        some = torch.randperm(len(options))[:70]
        yield lambda sampling, x=logits, at=some: (sampling.choose(x, at, options[:70], seeds[:70]),)
        masks = torch.randint(-(2**63), 2**63 - 1, (70, -(-columns // 64))) & torch.randint(-(2**63), 2**63 - 1, (70, 1))
        masks[::3, columns // 128 :] = 0  # whole blocks, or all of a row
        yield lambda sampling, x=logits, at=some, m=masks: (sampling.choose(x, at, options[:70], seeds[:70], m),)
    equal = torch.zeros(3, 5000, dtype=dtype)
    equal[1, 4000:] = equal[2, 4999] = 1
    greedy = torch.tensor([[0.0, 0.0, 1.0, 0.0]] * 3, dtype=torch.float64)
    yield lambda sampling: (sampling.choose(equal, None, greedy, seeds[:3]),)
    low = torch.full((3, -(-5000 // 64)), -2)  # the first of equal ones is forbidden
    yield lambda sampling: (sampling.choose(equal, None, greedy, seeds[:3], low),)
    yield lambda sampling: (sampling.choose(equal[:0], None, greedy[:0], seeds[:0]),)
    yield lambda sampling: (sampling.choose(equal.t().contiguous().t(), None, greedy, seeds[:3]),)


def logprobs_cases(dtype: torch.dtype) -> Iterator[Case]:
    for columns, count in ((1, 0), (1, 1), (65, 65), (840, 0), (840, 5), (840, 200)):
        logits = distinct_logits(20, columns + 3, dtype) / 8
        logits[3, columns // 2] = torch.nan
        logits[4, columns // 3] = -torch.inf
        tokens = torch.randint(columns, (20,))
        tokens[7] = columns + 2

        def run(
            sampling: ModuleType, x: Tensor = logits, tokens: Tensor = tokens, count: int = count, columns: int = columns
        ) -> tuple[Tensor, ...]:
            values, ids, ranks = sampling.logprobs(x, None, tokens, count, columns)
            some, _, _ = sampling.logprobs(x, torch.tensor([9, 2]), tokens[[9, 2]], count, columns)
            ids[3], ranks[3] = 0, 0  # they mean nothing in the row with NaN
            return values, ids, ranks, some

        yield run
    if dtype == torch.float32:  # all bits in use, both signs
        wide = torch.randn(3, 3000)
        yield lambda sampling: sampling.logprobs(wide, None, tokens[:3], 3000, 3000)
        yield lambda sampling: sampling.logprobs(wide, None, tokens[:3], 7, 3000)


def penalize_cases(dtype: torch.dtype) -> Iterator[Case]:
    if dtype != torch.float32:
        return
    for count in (0, 1, 300):
        logits, cells = torch.randn(4, 200), torch.randperm(800)[:count]
        counts, penalties = torch.randint(0, 4, (count,)).float(), torch.rand(4, 3) * 2 - 0.5
        penalties[:, 0] += 1

        def run(
            sampling: ModuleType, given: tuple[Tensor, ...] = (cells, counts, cells // 200, penalties), logits: Tensor = logits
        ) -> tuple[Tensor, ...]:
            changed = logits.clone()
            sampling.penalize(changed, *given)
            return (changed,)

        yield run


# ---- mixture of experts


def experts_cases(dtype: torch.dtype) -> Iterator[Case]:
    for tokens, top_k, limit in ((0, 2, 0.0), (1, 1, 0.0), (1, 2, 0.5), (40, 3, 0.0), (40, 3, 0.5)):
        x, gate_up, down = (randn(*s, dtype=dtype) / 5 for s in ((tokens, 64), (7, 96, 64), (7, 64, 48)))
        first, second = randn(7, 96, dtype=dtype), randn(7, 64, dtype=dtype)
        chosen = torch.rand(tokens, 7).topk(top_k).indices
        shares = torch.rand(tokens, top_k)

        def run(
            moe: ModuleType, x: Tensor = x, chosen: Tensor = chosen, shares: Tensor = shares, weights: tuple[Tensor, ...] = (
                gate_up, down), biases: tuple[Tensor, ...] = (first, second), limit: float = limit,
        ) -> tuple[Tensor, ...]:  # fmt: skip
            packed = [moe.pack(weight) for weight in weights]
            plain = moe.mix(x, chosen, shares, *packed, limit=limit)
            some_here = moe.mix(x, chosen.where(chosen > 2, 7), shares, *packed)
            return plain, moe.mix(x, chosen, shares, *packed, *biases, limit=limit), some_here

        yield run


def route_cases(dtype: torch.dtype) -> Iterator[Case]:
    if dtype != torch.float32:
        return
    for tokens, count, top_k in ((0, 8, 2), (1, 8, 1), (5, 60, 4), (3, 128, 8)):
        logits, bias = torch.randn(tokens, count) * 2, torch.randn(count)
        yield lambda moe, x=logits, k=top_k: moe.route(x, k)
        yield lambda moe, x=logits, k=top_k: moe.route(x, k, renormalize=True, scale=2.5)
        yield lambda moe, x=logits, k=top_k, b=bias: moe.route(x, k, b, sigmoid=True, renormalize=True)


def grouped_experts_cases(dtype: torch.dtype) -> Iterator[Case]:
    if dtype != torch.bfloat16:
        return
    x, chosen, shares = randn(9, 64, dtype=dtype), torch.rand(9, 5).topk(2).indices, torch.rand(9, 2)
    for codes in (None, "e2m1"):
        made = [random_groups(5 * n, k, 4) for n, k in ((192, 64), (64, 96))]
        stacks = [[part.unflatten(0, (5, -1)) for part in (v, s, least * (codes is None))] for v, s, least, _ in made]

        def run(moe: ModuleType, stacks: list[list[Tensor]] = stacks, codes: str | None = codes) -> tuple[Tensor, ...]:
            return (moe.mix(x, chosen, shares, *[moe.pack_groups(*stack, 4, codes, dtype) for stack in stacks]),)

        yield run


CASES = {
    ("norm", "rms_norm"): rms_norm_cases,
    ("norm", "add_rms_norm"): add_rms_norm_cases,
    ("norm", "layer_norm"): layer_norm_cases,
    ("norm", "add_layer_norm"): layer_norm_cases,
    ("rotary", "apply_rotary"): apply_rotary_cases,
    ("activation", "silu_and_mul"): silu_and_mul_cases,
    ("activation", "gelu_and_mul"): gelu_and_mul_cases,
    ("activation", "activate"): activate_cases,
    ("elementwise", "scale"): scale_cases,
    ("elementwise", "add"): add_cases,
    ("elementwise", "indices_in"): indices_in_cases,
    ("elementwise", "clear_outside"): clear_outside_cases,
    ("kv_write", "write_kv"): write_kv_cases,
    ("attention", "paged_attention"): paged_attention_cases,
    ("attention", "latent_attention"): latent_attention_cases,
    ("attention", "whole_attention"): whole_attention_cases,
    ("gemm", "linear"): linear_cases,
    ("gemm", "rows"): rows_cases,
    ("gemm", "pack"): pack_cases,
    ("gemm_fp8", "is_native"): lambda dtype: iter([lambda gemm: (torch.tensor(gemm.is_native(torch.device("cpu"))),)]),
    ("gemm_fp8", "linear"): fp8_linear_cases,
    ("gemm_fp8", "rows"): fp8_rows_cases,
    ("gemm_fp8", "pack"): fp8_rows_cases,
    ("gemm_int8", "linear"): int8_linear_cases,
    ("gemm_int8", "rows"): int8_rows_cases,
    ("gemm_int8", "pack"): int8_pack_cases,
    ("gemm_grouped", "linear"): grouped_linear_cases,
    ("gemm_grouped", "rows"): grouped_rows_cases,
    ("gemm_grouped", "pack"): grouped_pack_cases,
    ("moe", "pack"): experts_cases,
    ("moe", "pack_groups"): grouped_experts_cases,
    ("moe", "mix"): experts_cases,
    ("moe", "route"): route_cases,
    ("sampling", "choose"): choose_cases,
    ("sampling", "logprobs"): logprobs_cases,
    ("sampling", "penalize"): penalize_cases,
}


def functions(module: ModuleType) -> dict[str, inspect.Signature]:
    public = inspect.getmembers(module, lambda item: inspect.isfunction(item) and item.__module__ == module.__name__)
    return {name: inspect.signature(function) for name, function in public if not name.startswith("_")}


def isas() -> list[str]:
    return [] if extension_error() is not None else importlib.import_module("minivllm._cpu").available_isas()


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    extension = importlib.import_module("minivllm._cpu")
    before = extension.num_threads()
    yield extension.set_threads
    extension.set_threads(before)


@pytest.fixture(params=isas())
def isa(request: pytest.FixtureRequest, threads: Callable[[int], None]) -> Iterator[str]:
    extension = importlib.import_module("minivllm._cpu")
    best = extension.isa()
    extension.set_isa(request.param)
    threads(1)
    yield request.param
    extension.set_isa(best)


@pytest.mark.parametrize("op", OPS)
def test_families_share_functions_and_parameters(op: str) -> None:
    compiled, plain = (functions(importlib.import_module(f"minivllm.kernels.{family}.{op}")) for family in ("cpu", "reference"))
    assert compiled.keys() == plain.keys() == {name for module, name in CASES if module == op}
    for name in plain:
        assert list(compiled[name].parameters) == list(plain[name].parameters)


def test_every_reference_module_is_an_op() -> None:
    assert {module.name for module in pkgutil.iter_modules(reference_package.__path__)} == set(OPS)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", CASES, ids=".".join)
def test_equal_to_reference(op: tuple[str, str], dtype: torch.dtype, isa: str) -> None:
    compare(op[0], CASES[op](dtype), dtype)


@pytest.mark.parametrize("count", (2, 3, 5))
def test_any_number_of_threads(count: int, threads: Callable[[int], None]) -> None:
    threads(count)
    bfloat16 = torch.bfloat16
    weight, bias, x = randn(200, 96, dtype=bfloat16), randn(200, dtype=bfloat16), randn(300, 96, dtype=bfloat16)
    compare("gemm", (lambda gemm, m=m: (gemm.linear(x[:m], gemm.pack(weight), bias),) for m in (1, 20, 300)), bfloat16)
    compare("gemm_int8", (lambda gemm, m=m: (gemm.linear(x[:m], gemm.pack(weight), bias),) for m in (1, 20, 300)), bfloat16)
    groups = random_groups(200, 96, 4)
    compare("gemm_grouped", (lambda gemm, m=m: (gemm.linear(x[:m], gemm.pack(*groups), bias),) for m in (1, 20, 300)), bfloat16)
    attention = (
        paged_case([1], [1500], dtype=torch.float32),  # divided along the keys
        paged_case([1], [1500], dtype=torch.float32, window=1200),
        paged_case([2, 1], [1300, 40], dtype=torch.float32, heads=2, kv_heads=2, sinks=True, slopes=True),
        paged_case([700, 1], [700, 40], dtype=torch.float32),
    )
    compare("attention", attention, torch.float32)
    wide = randn(200, 576, dtype=torch.float32)
    compare("norm", [lambda norm: (norm.rms_norm(wide, wide[0].clone(), 1e-5),)], torch.float32)
    logits, seeds = distinct_logits(40, 16000, torch.float32) / 16, torch.randint(2**63 - 1, (40, 2))
    options = torch.tensor([[0.8, 0, 1, 0], [1, 20, 1, 0], [1, 0, 0.9, 0], [0, 0, 1, 0]] * 10, dtype=torch.float64)
    compare("sampling", [lambda sampling: (sampling.choose(logits, None, options, seeds),)], torch.float32)


def compare(module: str, cases: Iterable[Case], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cpu, reference = getattr(ops_for("cpu"), module), getattr(ops_for("cpu", use_extension=False), module)
    assert cpu is not reference
    for number, case in enumerate(cases):
        for actual, expected in zip(case(cpu), case(reference), strict=True):
            tolerance = TOLERANCE[dtype]
            torch.testing.assert_close(
                actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text, n=number: f"case {n}: {text}"
            )


@pytest.mark.parametrize("op", ("gemm", "gemm_int8"))
def test_float32_results_do_not_depend_on_the_batch(op: str, isa: str) -> None:
    torch.manual_seed(0)
    gemm = getattr(ops_for("cpu"), op)
    weight, x = gemm.pack(randn(100, 700, dtype=torch.float32)), randn(40, 700, dtype=torch.float32)
    assert torch.equal(gemm.linear(x, weight), torch.cat([gemm.linear(row[None], weight) for row in x]))
