"""What speed.py measures: kernels with the sizes of usual models, and tiles to try."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from models import Scale
from torch import Tensor

from minivllm.kernels.reference.gemm_fp8 import Fp8Weight
from minivllm.kernels.reference.gemm_int8 import Int8Weight
from minivllm.kernels.triton import (
    activation,
    attention,
    gemm_fp8,
    gemm_grouped,
    gemm_int8,
    kv_write,
    moe,
    norm,
    rotary,
    sampling,
)
from minivllm.kernels.triton.tiles import MEASURED, Key

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


@dataclass(slots=True)
class Case:
    call: Callable[[], object]
    moved: float = 0.0  # bytes
    flop: float = 0.0


Makers = Iterator[tuple[str, Callable[[], Case]]]


def limits(scale: Scale) -> Makers:
    yield "copy", partial(copying, scale.of(1 << 31, 1 << 10))
    yield "products", partial(multiplying, scale.of(8192, 64))


def copying(size: int) -> Case:
    source = torch.empty(size, dtype=torch.int8)
    target = torch.empty_like(source)
    return Case(lambda: target.copy_(source), 2 * source.nbytes)


def multiplying(size: int) -> Case:
    a, b = (torch.randn(size, size, dtype=BF16) for _ in range(2))
    return Case(lambda: a @ b, flop=2.0 * size**3)


def kernels(scale: Scale) -> Makers:
    loads = ((64, 4096, 32, 8, 128), (256, 1024, 32, 8, 128), (8, 4096, 32, 8, 128), (1, 32768, 32, 8, 128))
    loads += ((1, 1024, 32, 8, 128), (64, 4096, 32, 4, 128), (64, 4096, 64, 8, 64))
    for sizes in scale.of(loads, ((2, 40, 32, 8, 128),)):
        yield "attention, decode, {} x {}, {}/{}x{}".format(*sizes), partial(decoding, *sizes)
    if scale.has_fp8:
        sizes = scale.of((64, 4096, 32, 8, 128), (1, 40, 32, 8, 128))
        yield "attention, decode, {} x {}, {}/{}x{}, fp8 cache".format(*sizes), partial(decoding, *sizes, FP8)
    for sizes in scale.of(((64, 4096, 16), (1, 32768, 128)), ((1, 40, 16),)):
        yield "latent attention, decode, {} x {}, {} x 512 + 64".format(*sizes), partial(latent, *sizes)
    for sizes in scale.of(((1024, 32, 8, 128), (8192, 32, 8, 128), (8192, 16, 16, 64)), ((20, 2, 1, 64),)):
        yield "attention, prompt of {}, {}/{}x{}".format(*sizes), partial(prompt, *sizes)
    rows, hidden, wide = scale.of((8192, 4096, 14336), (16, 64, 96))
    for name in ("RMS norm", "added RMS norm", "SiLU and mul", "rotary", "KV write"):
        yield f"{name}, {rows} x {wide if 'SiLU' in name else hidden}", partial(small, name, rows, hidden, wide)
    k, n = scale.of((4096, 6144), (256, 128))
    kinds = [kind for kind in ("torch", "int8", "4 bits", "fp8", "fp8 blocks") if scale.has_fp8 or "fp8" not in kind]
    for rows, kind in itertools.product(scale.of((1, 16, 64, 1024), (3,)), kinds):
        yield f"linear, {kind}, {rows} x {k} x {n}", partial(linear, kind, rows, k, n)
    for rows in scale.of((1, 64, 256, 4096), (2,)):
        sizes = scale.of((128, 8, 2048, 768), (4, 2, 64, 32))
        yield "experts, {} tokens, {} of {}, {} x {}".format(rows, sizes[1], sizes[0], *sizes[2:]), partial(mix, rows, *sizes)
        yield f"order of {rows * sizes[1]} pairs by {sizes[0]} experts", partial(sort, rows, sizes[1], sizes[0])
    columns = scale.of(128256, 500)
    for rows, dtype, how in itertools.product(scale.of((1, 64, 256), (2,)), (BF16, torch.float32), WAYS):
        name = f"choice, {how}, {rows} x {columns} {str(dtype).removeprefix('torch.')}"
        yield name, partial(choosing, rows, columns, dtype, how)


def decoding(seqs: int, context: int, heads: int, kv_heads: int, dim: int, cache: torch.dtype = BF16) -> Case:
    q, kv, tables = paged(seqs, seqs, context, heads, kv_heads, dim)
    kv = kv.to(cache)
    starts, lengths = torch.arange(seqs + 1, dtype=torch.int32), torch.full((seqs,), context, dtype=torch.int32)
    moved = 2 * seqs * context * kv_heads * dim * cache.itemsize
    return Case(lambda: attention.paged_attention(q, kv, tables, starts, lengths, dim**-0.5), moved)


def latent(seqs: int, context: int, heads: int) -> Case:
    _, kv, tables = paged(seqs, seqs, context, 1, 1, 576)
    q = torch.randn(seqs, heads, 576, dtype=BF16)
    starts, lengths = torch.arange(seqs + 1, dtype=torch.int32), torch.full((seqs,), context, dtype=torch.int32)
    moved, flop = seqs * context * 576 * 2, 2.0 * seqs * context * heads * (576 + 512)
    return Case(lambda: attention.latent_attention(q, kv[:1], tables, starts, lengths, 0.1, 512), moved, flop)


def prompt(tokens: int, heads: int, kv_heads: int, dim: int) -> Case:
    q, kv, tables = paged(tokens, 1, tokens, heads, kv_heads, dim)
    starts, lengths = torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([tokens], dtype=torch.int32)
    flop = 2.0 * heads * dim * tokens * (tokens + 1)
    return Case(lambda: attention.paged_attention(q, kv, tables, starts, lengths, dim**-0.5), flop=flop)


def paged(tokens: int, seqs: int, context: int, heads: int, kv_heads: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    blocks = -(-context // 16)
    kv = torch.randn(2, seqs * blocks, kv_heads, 16, dim, dtype=BF16)
    return torch.randn(tokens, heads, dim, dtype=BF16), kv, torch.randperm(seqs * blocks).int().view(seqs, blocks)


def small(name: str, rows: int, hidden: int, wide: int) -> Case:
    x, residual = torch.randn(rows, hidden, dtype=BF16), torch.randn(rows, hidden, dtype=BF16)
    weight, gate = torch.ones(hidden, dtype=BF16), torch.randn(rows, 2 * wide, dtype=BF16)
    packed, slots = torch.randn(rows, 48, 128, dtype=BF16), torch.randperm(rows)
    kv, table = torch.empty(2, -(-rows // 16), 8, 16, 128, dtype=BF16), torch.randn(rows, 128)
    q, k, v = packed.split((32, 8, 8), dim=1)
    return {
        "RMS norm": Case(lambda: norm.rms_norm(x, weight, 1e-5), 2 * x.nbytes),
        "added RMS norm": Case(lambda: norm.add_rms_norm(x, residual, weight, 1e-5), 4 * x.nbytes),
        "SiLU and mul": Case(lambda: activation.silu_and_mul(gate), 1.5 * gate.nbytes),
        "rotary": Case(lambda: rotary.apply_rotary(q, k, slots, table), 2 * 40 / 48 * packed.nbytes),
        "KV write": Case(lambda: kv_write.write_kv(k, v, kv, slots), 2 * 16 / 48 * packed.nbytes),
    }[name]


def linear(kind: str, rows: int, k: int, n: int) -> Case:
    x, flop = torch.randn(rows, k, dtype=BF16), 2.0 * rows * k * n
    if kind == "torch":
        plain = torch.randn(n, k, dtype=BF16)
        return Case(lambda: torch.nn.functional.linear(x, plain), plain.nbytes, flop)
    if kind == "int8":
        int8 = Int8Weight(torch.randint(-127, 127, (n, k), dtype=torch.int8), torch.rand(n, 1))
        return Case(lambda: gemm_int8.linear(x, int8), int8.data.nbytes, flop)
    if kind == "4 bits":
        some = torch.rand(n, k // 32).half()
        grouped = gemm_grouped.pack(torch.randint(0, 255, (n, k // 2), dtype=torch.uint8), some, some, 4)
        return Case(lambda: gemm_grouped.linear(x, grouped), grouped.values.nbytes + 2 * some.nbytes, flop)
    scales = torch.rand((-(-n // 128), -(-k // 128)) if kind == "fp8 blocks" else (n, 1))
    fp8 = Fp8Weight(torch.randn(n, k).to(FP8), scales)
    return Case(lambda: gemm_fp8.linear(x, fp8), fp8.data.nbytes, flop)


def mix(tokens: int, count: int, top: int, hidden: int, size: int) -> Case:
    x, shares = torch.randn(tokens, hidden, dtype=BF16), torch.rand(tokens, top)
    chosen = torch.rand(tokens, count).topk(top).indices
    gate_up, down = torch.randn(count, 2 * size, hidden, dtype=BF16), torch.randn(count, hidden, size, dtype=BF16)
    moved = len(chosen.unique()) / count * (gate_up.nbytes + down.nbytes)
    return Case(lambda: moe.mix(x, chosen, shares, gate_up, down), moved, 6.0 * tokens * top * hidden * size)


def sort(tokens: int, top: int, count: int) -> Case:
    chosen = torch.rand(tokens, count).topk(top).indices.flatten()
    return Case(lambda: moe._sort(chosen, count))


WAYS = {"greedy": [0, 0, 1, 0], "plain": [1, 0, 1, 0], "top-p": [1, 0, 0.9, 0], "top-k": [1, 20, 0.9, 0]}


def choosing(rows: int, columns: int, dtype: torch.dtype, how: str) -> Case:
    logits, seeds = (torch.randn(rows, columns) * 3).to(dtype), torch.randint(0, 2**62, (rows, 2))
    params = torch.tensor([WAYS[how]] * rows, dtype=torch.float64)
    return Case(lambda: sampling.choose(logits, None, params, seeds), logits.nbytes)


@dataclass(slots=True)
class Sweep:
    """Tiles to try for a line of MEASURED. What counts is the time of all cases."""

    key: Key
    values: Sequence[tuple[int, ...]]
    cases: Sequence[Callable[[], Case]]


def sweeps(scale: Scale) -> Iterator[Sweep]:
    def product(*parts: Sequence[int]) -> list[tuple[int, ...]]:
        return list(itertools.product(*parts))

    if scale.small:
        yield Sweep(("decode", 64, 16), [(16, 4, 2)], [partial(decoding, 2, 40, 2, 1, 64)])
        return
    loads = ((1, 32768, 32, 8, 128), (8, 4096, 32, 8, 128), (32, 2048, 32, 8, 128), (64, 4096, 32, 8, 128))
    yield Sweep(("parts",), product((1, 2, 3, 4, 6, 8)), [partial(decoding, *load) for load in loads])
    for dim, heads in ((128, 32), (64, 64), (256, 16)):
        decode, text = partial(decoding, 64, 4096, heads, 8, dim), partial(prompt, 8192, heads, 8, dim)
        yield Sweep(("decode", dim, 16), product((16, 32, 64, 128), (2, 4, 8), (2, 3, 5)), [decode])
        yield Sweep(("prompt", dim), product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)), [text])
    few = product((32, 64, 128), (128, 256), (4,), (3, 4, 5)) + product((32,), (128, 256), (2,), (3, 4, 5))
    much = product((64, 128, 256), (64, 128), (4, 8), (3, 4))
    kinds = ("int8", "4 bits", "fp8", "fp8 blocks") if scale.has_fp8 else ("int8", "4 bits")
    for kind, n in itertools.product(kinds, (6144, 28672)):
        most = 64 if kind == "fp8 blocks" else 128
        for rows, values in ((16, few), (most, much)):
            fitting = [value for value in values if kind != "fp8 blocks" or value[1] == 128]
            case = partial(linear, kind, 16 if rows == 16 else 1024, 4096, n)
            yield Sweep((kind, rows, n > 8192), fitting, [case])
    for tokens, rows, values in ((64, 16, few), (8192, 128, much)):
        yield Sweep(("experts", rows, False), values, [partial(mix, tokens, 128, 8, 2048, 768)])


def tiled(key: Key, value: tuple[int, ...] | None, make: Callable[[], Case]) -> Case:
    """value: None for what is used now."""
    case = make()

    def call() -> None:
        kept = dict(MEASURED)
        if value is not None:
            MEASURED[key] = value
        try:
            case.call()
        finally:
            MEASURED.clear()
            MEASURED.update(kept)

    return Case(call)


def sweep_makers(scale: Scale) -> Makers:
    for sweep in sweeps(scale):
        for (number, make), value in itertools.product(enumerate(sweep.cases), (None, *sweep.values)):
            yield sweep_name(sweep.key, value, number), partial(tiled, sweep.key, value, make)


def sweep_name(key: Key, value: tuple[int, ...] | None, number: int) -> str:
    return f"{key}: {value}, case {number}"
