"""How fast is this GPU with these kernels, beside what it can do at all?

    PYTHONPATH=. python benchmarks/gpu/speed.py [--only attention] [--sweep] [--models llama-8b qwen3-30b-a3b] [--device cuda]

Needs torch and triton. `--device cpu`, with TRITON_INTERPRET=1, tries the program itself on small sizes; its figures
mean nothing. First the measured limits: bytes a copy reads and writes, and bf16 matrix products. Then each kernel as
a share of the limit that holds for it, and models with random weights, end to end on hand-made plans. --sweep tries other
divisions of attention's work and prints the best: for the table in kernels/triton/attention.choose_shape.
"""

import argparse
import dataclasses
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bare
import torch
from torch import Tensor
from triton.testing import do_bench

bare.provide()

import models  # noqa: E402
from models import Scale  # noqa: E402

from minivllm.kernels.reference.gemm_fp8 import Fp8Weight  # noqa: E402
from minivllm.kernels.reference.gemm_int8 import Int8Weight  # noqa: E402
from minivllm.kernels.triton import (  # noqa: E402
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
from minivllm.worker.worker import Worker  # noqa: E402

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


@dataclass(slots=True)
class Limits:
    bandwidth: float  # bytes a second
    matrix: float  # FLOP a second


@dataclass(slots=True)
class Case:
    name: str
    call: Callable[[], object]
    moved: float = 0.0  # bytes
    flop: float = 0.0


def seconds(scale: Scale, call: Callable[[], object], **how: Any) -> float:
    if not scale.small:
        return do_bench(call, **how) / 1e3
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure_limits(scale: Scale) -> Limits:
    source = torch.empty(scale.of(1 << 31, 1 << 10), dtype=torch.int8)
    target = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / seconds(scale, lambda: target.copy_(source))
    size = scale.of(8192, 64)
    a, b = (torch.randn(size, size, dtype=BF16) for _ in range(2))
    return Limits(bandwidth, 2 * size**3 / seconds(scale, lambda: a @ b))


def cases(scale: Scale) -> Iterator[Case]:
    for seqs, context in scale.of(((64, 4096), (256, 1024), (8, 4096), (1, 32768), (1, 1024)), ((2, 40),)):
        yield decoding(seqs, context, 32, 8, 128)
    for heads, kv_heads, dim in scale.of(((32, 4, 128), (64, 8, 64)), ()):
        yield decoding(64, 4096, heads, kv_heads, dim)
    if scale.has_fp8:
        yield decoding(*scale.of((64, 4096), (1, 40)), 32, 8, 128, FP8)
    for seqs, context, heads in scale.of(((64, 4096, 16), (1, 32768, 128)), ((1, 40, 16),)):
        yield latent(seqs, context, heads)
    for sizes in scale.of(((1024, 32, 8, 128), (8192, 32, 8, 128), (8192, 16, 16, 64)), ((20, 2, 1, 64),)):
        yield prompt(*sizes)
    yield from small_cases(*scale.of((8192, 4096, 14336), (16, 64, 96)))
    for rows in scale.of((1, 16, 64, 1024), (3,)):
        yield from linear_cases(rows, *scale.of((4096, 6144), (256, 128)), scale.has_fp8)
    for rows in scale.of((1, 64, 4096), (2,)):
        yield expert_case(rows, *scale.of((128, 8, 2048, 768), (4, 2, 64, 32)))
    for rows, dtype in itertools.product(scale.of((1, 64), (2,)), (BF16, torch.float32)):
        yield from sampling_cases(rows, dtype, scale.of(128256, 500))


def decoding(seqs: int, context: int, heads: int, kv_heads: int, dim: int, cache: torch.dtype = BF16) -> Case:
    q, kv, tables = paged(seqs, seqs, context, heads, kv_heads, dim)
    kv = kv.to(cache)
    starts, lengths = torch.arange(seqs + 1, dtype=torch.int32), torch.full((seqs,), context, dtype=torch.int32)
    moved = 2 * seqs * context * kv_heads * dim * cache.itemsize
    name = f"attention, decode, {seqs} x {context}, {heads}/{kv_heads}x{dim}{', fp8 cache' * (cache == FP8)}"
    return Case(name, lambda: attention.paged_attention(q, kv, tables, starts, lengths, dim**-0.5), moved)


def latent(seqs: int, context: int, heads: int) -> Case:
    _, kv, tables = paged(seqs, seqs, context, 1, 1, 576)
    q = torch.randn(seqs, heads, 576, dtype=BF16)
    starts, lengths = torch.arange(seqs + 1, dtype=torch.int32), torch.full((seqs,), context, dtype=torch.int32)
    moved, flop = seqs * context * 576 * 2, 2.0 * seqs * context * heads * (576 + 512)
    name = f"latent attention, decode, {seqs} x {context}, {heads} x 512 + 64"
    return Case(name, lambda: attention.latent_attention(q, kv[:1], tables, starts, lengths, 0.1, 512), moved, flop)


def prompt(tokens: int, heads: int, kv_heads: int, dim: int) -> Case:
    q, kv, tables = paged(tokens, 1, tokens, heads, kv_heads, dim)
    starts, lengths = torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([tokens], dtype=torch.int32)
    flop = 2.0 * heads * dim * tokens * (tokens + 1)
    name = f"attention, prompt of {tokens}, {heads}/{kv_heads}x{dim}"
    return Case(name, lambda: attention.paged_attention(q, kv, tables, starts, lengths, dim**-0.5), flop=flop)


def paged(tokens: int, seqs: int, context: int, heads: int, kv_heads: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    blocks = -(-context // 16)
    kv = torch.randn(2, seqs * blocks, kv_heads, 16, dim, dtype=BF16)
    return torch.randn(tokens, heads, dim, dtype=BF16), kv, torch.randperm(seqs * blocks).int().view(seqs, blocks)


def small_cases(rows: int, hidden: int, wide: int) -> Iterator[Case]:
    x, residual, weight = (
        torch.randn(rows, hidden, dtype=BF16),
        torch.randn(rows, hidden, dtype=BF16),
        torch.ones(hidden, dtype=BF16),
    )
    gate = torch.randn(rows, 2 * wide, dtype=BF16)
    packed, slots = torch.randn(rows, 48, 128, dtype=BF16), torch.randperm(rows)
    kv, table = torch.empty(2, rows // 16, 8, 16, 128, dtype=BF16), torch.randn(rows, 128)
    q, k, v = packed.split((32, 8, 8), dim=1)
    yield Case(f"RMS norm, {rows} x {hidden}", lambda: norm.rms_norm(x, weight, 1e-5), 2 * x.nbytes)
    yield Case(f"added RMS norm, {rows} x {hidden}", lambda: norm.add_rms_norm(x, residual, weight, 1e-5), 4 * x.nbytes)
    yield Case(f"SiLU and mul, {rows} x {wide}", lambda: activation.silu_and_mul(gate), 1.5 * gate.nbytes)
    yield Case(f"rotary, {rows} x 40 x 128", lambda: rotary.apply_rotary(q, k, slots, table), 2 * 40 / 48 * packed.nbytes)
    yield Case(f"KV write, {rows} x 8 x 128", lambda: kv_write.write_kv(k, v, kv, slots), 2 * 16 / 48 * packed.nbytes)


def linear_cases(rows: int, k: int, n: int, has_fp8: bool) -> Iterator[Case]:
    x, flop = torch.randn(rows, k, dtype=BF16), 2.0 * rows * k * n
    plain = torch.randn(n, k, dtype=BF16)
    int8 = Int8Weight(torch.randint(-127, 127, (n, k), dtype=torch.int8), torch.rand(n, 1))
    some = torch.rand(n, k // 32).half()
    grouped = gemm_grouped.pack(torch.randint(0, 255, (n, k // 2), dtype=torch.uint8), some, some, 4)
    yield Case(f"torch linear, {rows} x {k} x {n}", lambda: torch.nn.functional.linear(x, plain), plain.nbytes, flop)
    yield Case(f"int8 linear, {rows} x {k} x {n}", lambda: gemm_int8.linear(x, int8), int8.data.nbytes, flop)
    moved = grouped.values.nbytes + 2 * some.nbytes
    yield Case(f"4-bit linear, {rows} x {k} x {n}", lambda: gemm_grouped.linear(x, grouped), moved, flop)
    for what, shape in (("row", (n, 1)), ("block", (-(-n // 128), -(-k // 128)))) if has_fp8 else ():
        fp8 = Fp8Weight(plain.to(FP8), torch.rand(shape))
        call = partial(gemm_fp8.linear, x, fp8)
        yield Case(f"fp8 linear, scales by {what}, {rows} x {k} x {n}", call, fp8.data.nbytes, flop)


def expert_case(tokens: int, count: int, top: int, hidden: int, size: int) -> Case:
    x, shares = torch.randn(tokens, hidden, dtype=BF16), torch.rand(tokens, top)
    chosen = torch.rand(tokens, count).topk(top).indices
    gate_up, down = torch.randn(count, 2 * size, hidden, dtype=BF16), torch.randn(count, hidden, size, dtype=BF16)
    used = len(chosen.unique()) / count
    name = f"experts, {tokens} tokens, {top} of {count}, {hidden} x {size}"
    moved = used * (gate_up.nbytes + down.nbytes)
    return Case(name, lambda: moe.mix(x, chosen, shares, gate_up, down), moved, 6.0 * tokens * top * hidden * size)


def sampling_cases(rows: int, dtype: torch.dtype, columns: int) -> Iterator[Case]:
    logits, seeds = torch.randn(rows, columns, dtype=dtype) * 3, torch.randint(0, 2**62, (rows, 2))
    for name, options in (
        ("greedy", [0, 0, 1, 0]),
        ("plain", [1, 0, 1, 0]),
        ("top-p", [1, 0, 0.9, 0]),
        ("top-k", [1, 20, 0.9, 0]),
    ):
        params = torch.tensor([options] * rows, dtype=torch.float64)
        title = f"choose, {name}, {rows} x {columns} {str(dtype).removeprefix('torch.')}"
        yield Case(title, lambda params=params: sampling.choose(logits, None, params, seeds), logits.nbytes)


def report(case: Case, limits: Limits, scale: Scale) -> None:
    took = seconds(scale, case.call)
    parts = [f"{1e6 * took:.0f}"]
    least = max(case.moved / limits.bandwidth, case.flop / limits.matrix)
    parts.append(f"{case.moved / took / 1e12:.2f}" if case.moved else "–")
    parts.append(f"{case.flop / took / 1e12:.0f}" if case.flop else "–")
    print(f"| {case.name} | {' | '.join(parts)} | {least / took:.0%} |", flush=True)


def sweep(scale: Scale) -> None:
    """The best divisions of attention's work for some usual sizes."""
    choose = attention.choose_shape
    for case, dims in (
        (lambda: decoding(64, 4096, 32, 8, 128), ((16,), (32, 64, 128), (1, 2), (2, 4), (2, 3, 5))),
        (lambda: decoding(1, 32768, 32, 8, 128), ((16,), (32, 64, 128), (16, 32), (2, 4), (2, 3, 5))),
        (lambda: decoding(8, 4096, 32, 8, 128), ((16,), (64,), (4, 8, 16), (4,), (3, 5))),
        (lambda: prompt(8192, 32, 8, 128), ((64, 128), (32, 64, 128), (1,), (4, 8), (2, 3, 5))),
    ):
        made = case()
        found: list[tuple[float, attention.Shape]] = []
        for values in itertools.product(*dims):
            shape = attention.Shape(*values)
            attention.choose_shape = lambda *_, shape=shape: shape
            try:
                found.append((seconds(scale, made.call, warmup=5, rep=30), shape))
            except Exception as error:  # too much shared memory, say
                print(f"  {shape}: {type(error).__name__}")
        attention.choose_shape = choose
        usual = seconds(scale, made.call, warmup=5, rep=30)
        best = "; ".join(f"{1e6 * t:.0f} us {dataclasses.astuple(s)}" for t, s in sorted(found, key=lambda pair: pair[0])[:3])
        print(f"{made.name}: as it is {1e6 * usual:.0f} us; best (rows, tile, splits, warps, stages): {best}", flush=True)


MODELS = {"llama-8b": models.LLAMA_8B, "qwen3-30b-a3b": models.QWEN3_30B_A3B}


@dataclass(slots=True)
class Load:
    prompt: int = 1024
    answer: int = 128
    chunk: int = 8192  # tokens of a step


def model_rows(name: str, limits: Limits, batches: list[int], scale: Scale) -> None:
    with TemporaryDirectory() as folder:
        load, config = scale.of((Load(), MODELS[name]), (Load(20, 5, 64), MODELS[name] | models.TINY))
        per_seq = (load.prompt + load.answer) // 16 + 1
        options = {"dtype": "bfloat16", "max_model_len": 2048, "max_num_seqs": max(batches)}
        began = time.monotonic()
        worker = models.make_worker(
            Path(folder), per_seq * max(batches), config, device=scale.device, max_num_batched_tokens=load.chunk, **options
        )
        print(f"{name}: loaded and captured in {time.monotonic() - began:.0f} s", flush=True)
        print("| Batch | Prompt tokens/s | Decode tokens/s | Step ms | of it on the device | besides | Share of the limit |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for count in batches:
            run_batch(worker, count, per_seq, limits, load, scale)


def run_batch(worker: Worker, count: int, per_seq: int, limits: Limits, load: Load, scale: Scale) -> None:
    batch = models.Batch(worker, 16, per_seq)
    prompts = [[(7 * i + 31 * s) % 1000 for i in range(load.prompt)] for s in range(count)]
    for _ in range(2):  # the first compiles what is to be compiled
        if not scale.small:
            torch.cuda.synchronize()
        began = time.monotonic()
        batch.prefill(prompts, load.chunk)
        prefill = time.monotonic() - began
        batch.decode()
        if _ == 0:
            batch.free()
    steps = []
    for _ in range(load.answer - 2):
        began = time.monotonic()
        batch.decode()
        steps.append(time.monotonic() - began)
    step = statistics.median(steps)
    device = 0.0 if scale.small else on_device(batch)
    weights = sum(t.nbytes for t in tensors_of(worker))
    layers = worker._loaded_pool().layers
    read = weights + len(layers) * layers[0][:, 0].nbytes / 16 * sum(batch.lengths)
    print(
        f"| {count} | {count * load.prompt / prefill:.0f} | {count / step:.0f} | {1e3 * step:.2f} | {1e3 * device:.2f} "
        f"| {1e3 * (step - device):.2f} | {read / limits.bandwidth / step:.0%} |",
        flush=True,
    )
    batch.free()


def on_device(batch: models.Batch) -> float:
    """Seconds in which kernels run during a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            batch.decode()
        torch.cuda.synchronize()
    return sum(event.device_time_total for event in profile.key_averages()) / 3 / 1e6


def tensors_of(worker: Worker) -> Iterator[Tensor]:
    """What a step reads of the model: all of it but an embedding that is only looked up."""
    model: Any = worker._runner._model  # type: ignore[union-attr]
    for path, layer in model.walk():
        if not ("embed_tokens" in path and model.lm_head is not None):
            yield from (value for value in vars(layer).values() if isinstance(value, Tensor))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kernels with this in their name; no models")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--models", nargs="*", default=["llama-8b"], choices=MODELS)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    args = parser.parse_args()
    if args.sweep and args.device == "cpu":
        parser.error("--sweep needs a GPU")
    scale = Scale(args.device)
    batches = [2] if scale.small else args.batches
    with torch.device(args.device):
        limits = measure_limits(scale)
        device_name = scale.device if scale.small else torch.cuda.get_device_name()
        print(f"{device_name}: copies {limits.bandwidth / 1e12:.2f} TB/s read and written, ", end="")
        print(f"bf16 products {limits.matrix / 1e12:.0f} TFLOP/s\n")
        if args.sweep:
            sweep(scale)
        print("| Kernel | us | TB/s | TFLOP/s | Share of the limit |\n|---|---|---|---|---|")
        for case in cases(scale):
            if args.only in case.name:
                report(case, limits, scale)
    for name in args.models if not args.only else ():
        gc.collect()
        if not scale.small:
            torch.cuda.empty_cache()
        model_rows(name, limits, batches, scale)


if __name__ == "__main__":
    main()
