"""Launches that stand for what the server does, for ahead.py: every kernel, with the sizes of usual models."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
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

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
FLOATS = (BF16, FP16, FP32)


@dataclass(slots=True)
class Specimen:
    name: str
    call: Callable[[], object]
    quick: bool = True  # among those that the tests compile
    capability: int = 80  # the least that it needs


def specimens() -> Iterator[Specimen]:
    yield from attention_specimens()
    yield from latent_specimens()
    yield from small_specimens()
    yield from linear_specimens()
    yield from moe_specimens()
    yield from sampling_specimens()


def attention_specimens() -> Iterator[Specimen]:
    """Named by heads/kv heads x head size, types of activations and cache, and what the launch is."""
    shapes = ((32, 8, 128), (32, 4, 128), (16, 16, 64), (9, 3, 64), (32, 32, 96), (8, 4, 256), (64, 8, 64))
    for heads, kv_heads, dim in shapes:
        usual = dim == 128 and kv_heads == 8
        for dtype in FLOATS if usual else (BF16,):
            for what, queries in (("decode", 1), ("chunk", 8), ("prefill", 1000)):
                quick = (usual and dtype == BF16 and what != "chunk") or (dim == 256 and what == "prefill")
                call = partial(attend, heads, kv_heads, dim, dtype, queries)
                yield Specimen(name_of(heads, kv_heads, dim, dtype, dtype, what), call, quick)
    yield Specimen(name_of(9, 3, 64, FP32, FP32, "prefill"), partial(attend, 9, 3, 64, FP32, 1000), False)
    for what, queries in (("decode", 1), ("prefill", 1000)):
        yield Specimen(
            name_of(32, 8, 128, BF16, FP8, what), partial(attend, 32, 8, 128, BF16, queries, cache=FP8), queries == 1, 89
        )
        yield Specimen(name_of(32, 8, 128, BF16, FP32, what), partial(attend, 32, 8, 128, BF16, queries, cache=FP32), False)
        # As Mistral, BLOOM, gpt-oss, and Gemma 2 have it.
        for heads, kv_heads, dim, given in (
            (32, 8, 128, ("sliding_window",)),
            (32, 32, 128, ("alibi_slopes",)),
            (64, 8, 64, ("sliding_window", "sinks")),
            (32, 16, 128, ("sliding_window", "soft_cap")),
            (8, 4, 256, ("sliding_window", "soft_cap")),
        ):
            call, quick = partial(attend, heads, kv_heads, dim, BF16, queries, given=given), kv_heads == 16 and queries > 1
            yield Specimen(name_of(heads, kv_heads, dim, BF16, BF16, f"{what}, {' and '.join(given)}"), call, quick)
    yield Specimen(
        name_of(32, 8, 128, BF16, BF16, "decode, 256 sequences"), partial(attend, 32, 8, 128, BF16, 1, seqs=256), False
    )


def latent_specimens() -> Iterator[Specimen]:
    """DeepSeek-V2-Lite has 16 heads, DeepSeek-V3 128."""
    for heads, rank, dtype in ((16, 512, BF16), (40, 512, BF16), (128, 512, BF16), (16, 512, FP16), (16, 128, FP32)):
        for what, queries in (("decode", 1), ("prefill", 1000)):
            call = partial(attend_latent, heads, rank, dtype, queries)
            yield Specimen(f"latent, {heads} x {rank} + 64 {short(dtype)} {what}", call, heads == 128)


def attend_latent(heads: int, rank: int, dtype: torch.dtype, queries: int) -> None:
    q, cache = torch.empty(queries, heads, rank + 64, dtype=dtype), torch.empty(1, 1, 1, 16, rank + 64, dtype=dtype)
    tables, starts, lengths = (torch.empty(*shape, dtype=torch.int32) for shape in ((1, 2048), (2,), (1,)))
    attention.latent_attention(q, cache, tables, starts, lengths, 0.1, rank)


def name_of(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, cache: torch.dtype, what: str) -> str:
    types = short(dtype) if cache == dtype else f"{short(dtype)}/{short(cache)}"
    return f"{heads}/{kv_heads}x{dim} {types} {what}"


def short(dtype: torch.dtype) -> str:
    return {BF16: "bf16", FP16: "fp16", FP32: "fp32", FP8: "fp8"}[dtype]


def attend(
    heads: int, kv_heads: int, dim: int, dtype: torch.dtype, queries: int, *, seqs: int = 1, cache: torch.dtype | None = None,
    given: tuple[str, ...] = (),
) -> None:  # fmt: skip
    options: dict[str, Any] = {
        "sliding_window": 1024, "soft_cap": 50.0, "alibi_slopes": torch.ones(heads), "sinks": torch.ones(heads, dtype=dtype)
    }  # fmt: skip
    options = {name: value for name, value in options.items() if name in given}
    q = torch.empty(seqs * queries, heads + 2 * kv_heads, dim, dtype=dtype)[:, :heads]
    kv = torch.empty(2, 1, kv_heads, 16, dim, dtype=cache or dtype)
    tables = torch.empty(seqs, 2048, dtype=torch.int32)
    starts, lengths = torch.empty(seqs + 1, dtype=torch.int32), torch.empty(seqs, dtype=torch.int32)
    attention.paged_attention(q, kv, tables, starts, lengths, dim**-0.5, **options)


def small_specimens() -> Iterator[Specimen]:
    for dtype in FLOATS:
        for hidden in (576, 4096, 8192):
            x, weight = rows_of(hidden, dtype), torch.empty(hidden, dtype=dtype)
            quick = dtype == BF16 and hidden != 576
            yield Specimen(f"{hidden} {short(dtype)}", partial(norm.rms_norm, x, weight, 1e-5), quick)
            yield Specimen(f"{hidden} {short(dtype)}, added", partial(norm.add_rms_norm, x, x.clone(), weight, 1e-5), quick)
        layer = partial(norm.add_layer_norm, x, x.clone(), weight, weight, 1e-5)
        yield Specimen(f"layer, 8192 {short(dtype)}, added", layer, dtype == BF16)
        heads = torch.empty(4, 48, 128, dtype=dtype)
        yield Specimen(
            f"32 heads of 128 {short(dtype)}", partial(norm.rms_norm, heads[:, :32], torch.empty(128, dtype=dtype), 1e-5)
        )
        for interleaved in (False, True):
            call = partial(
                rotary.apply_rotary, heads[:, :32], heads[:, 32:40], torch.zeros(4, dtype=torch.int64), torch.empty(64, 128),
                interleaved=interleaved,
            )  # fmt: skip
            yield Specimen(f"32/8x128 {short(dtype)}{', interleaved' * interleaved}", call, dtype == BF16)
        wide = rows_of(2 * 14336, dtype)
        yield Specimen(f"silu, 14336 {short(dtype)}", partial(activation.silu_and_mul, wide), dtype == BF16)
        yield Specimen(f"gelu by tanh, 14336 {short(dtype)}", partial(activation.gelu_and_mul, wide), dtype == BF16)
        yield Specimen(f"gelu, 14336 {short(dtype)}", partial(activation.gelu_and_mul, wide, approximate="none"), dtype == BF16)
    for cache in (BF16, FP8):
        packed, kv = torch.empty(4, 48, 128, dtype=BF16), torch.empty(2, 1, 8, 16, 128, dtype=cache)
        call = partial(kv_write.write_kv, packed[:, 32:40], packed[:, 40:], kv, torch.zeros(4, dtype=torch.int64))
        yield Specimen(f"8x128 bf16, {short(cache)} cache", call, True, 80 if cache == BF16 else 89)


def linear_specimens() -> Iterator[Specimen]:
    n, k = 6144, 4096
    int8 = Int8Weight(torch.empty(n, k, dtype=torch.int8), torch.empty(n, 1))
    for dtype, rows in ((BF16, 1), (BF16, 32), (BF16, 64), (BF16, 1000), (FP16, 1), (FP32, 1), (FP32, 1000)):
        x, quick = rows_of(k, dtype, rows), dtype == BF16 and rows in (1, 1000)
        yield Specimen(f"{rows} rows {short(dtype)}", partial(gemm_int8.linear, x, int8), quick)
        for bits, codes in ((4, None), (8, None), (4, "nf4"), (8, "e4m3")):
            some = torch.empty(n, k // 32, dtype=FP16)
            weight = gemm_grouped.pack(torch.empty(n, k * bits // 8, dtype=torch.uint8), some, some, bits, codes)
            name = f"{rows} rows {short(dtype)}, {bits} bits{f', {codes}' if codes else ''}"
            yield Specimen(name, partial(gemm_grouped.linear, x, weight), quick and bits == 4)
        if dtype == BF16:
            for what, shape in (("by row", (n, 1)), ("by block", (n // 128, k // 128))):
                fp8 = Fp8Weight(torch.empty(n, k, dtype=FP8), torch.empty(shape))
                yield Specimen(f"{rows} rows bf16, scales {what}", partial(gemm_fp8.linear, x, fp8), quick, 89)


def moe_specimens() -> Iterator[Specimen]:
    """Half as many experts as Qwen3-30B-A3B has; they are only names here."""
    gate_up, down = torch.empty(64, 1536, 2048, dtype=BF16), torch.empty(64, 2048, 768, dtype=BF16)
    for tokens in (1, 64, 4096):
        call = partial(
            moe.mix, rows_of(2048, BF16, tokens), torch.zeros(tokens, 8).long(), torch.ones(tokens, 8), gate_up, down
        )
        yield Specimen(f"{tokens} tokens, 8 of 64 experts bf16", call, tokens != 64)
    yield Specimen("8 of 128 experts", partial(moe.route, torch.empty(4, 128), 8, renormalize=True))
    sigmoid = partial(moe.route, torch.empty(4, 256), 8, torch.empty(256), sigmoid=True)
    yield Specimen("8 of 256 experts, sigmoid", sigmoid, False)


def sampling_specimens() -> Iterator[Specimen]:
    for dtype in FLOATS:
        logits, params, seeds = (
            rows_of(128256, dtype),
            torch.empty(4, 4, dtype=torch.float64),
            torch.empty(4, 2, dtype=torch.int64),
        )
        yield Specimen(f"128256 {short(dtype)}", partial(sampling.choose, logits, None, params, seeds), dtype == BF16)
        words = torch.empty(4, 128256 // 64, dtype=torch.int64)
        masked = partial(sampling.choose, logits, None, params, seeds, words)
        yield Specimen(f"128256 {short(dtype)}, masked", masked, dtype == BF16)
        tokens = torch.zeros(4, dtype=torch.int64)
        if dtype == FP32:
            cells = torch.zeros(300, dtype=torch.int64)
            yield Specimen(
                "300 cells", partial(sampling.penalize, logits, cells, torch.empty(300), cells, torch.empty(4, 3)), True
            )
        yield Specimen(f"128256 {short(dtype)}", partial(sampling.logprobs, logits, None, tokens, 5, 128256), dtype == BF16)


def rows_of(columns: int, dtype: torch.dtype, rows: int = 4) -> Tensor:
    return torch.empty(rows, columns, dtype=dtype)
