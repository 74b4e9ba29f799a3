"""Is everything right on this GPU? All kernels against the reference, and tiny models against transformers.

    PYTHONPATH=. python benchmarks/gpu/check.py [--only attention] [--device cuda]

Needs torch, triton and transformers. Prints one table and fails if anything is beyond its bound. `--device cpu`, with
TRITON_INTERPRET=1, tries the program itself on small sizes.
"""

import argparse
import importlib
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bare
import torch
from torch import Tensor

bare.provide()

import models  # noqa: E402
import transformers  # noqa: E402
from models import Scale  # noqa: E402

from minivllm.kernels.reference.attention import paged_attention as reference_attention  # noqa: E402

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
BOUND = {FP32: 5e-5, FP16: 4e-3, BF16: 2e-2}
FLOATS = (FP32, FP16, BF16)

# An error as a share of its bound: beyond 1 is wrong.
Outcome = Iterator[float]


def ops(name: str) -> tuple[Any, Any]:
    return tuple(importlib.import_module(f"minivllm.kernels.{family}.{name}") for family in ("triton", "reference"))


def worst(actual: Tensor, expected: Tensor, bound: float) -> float:
    """NaN only where NaN is expected."""
    a, e = actual.float(), expected.float()
    if not torch.equal(a.isnan(), e.isnan()):
        return float("inf")
    same = (a == e) | e.isnan()
    return (((a - e).abs() / (bound * (1 + e.abs()))).masked_fill(same, 0)).max().item() if a.numel() else 0.0


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, torch.nan).to(dtype)


def attention(scale: Scale) -> Outcome:
    heads = scale.of(((32, 8, 128), (9, 3, 64), (8, 4, 256), (32, 32, 96), (71, 1, 64), (64, 8, 64), (5, 5, 80)), ((4, 2, 64),))
    steps: list[tuple[list[int], list[int]]] = scale.of(
        [([1] * 5, [1, 17, 700, 3000, 64]), ([1], [20000]), ([1] * 70, [900 + i for i in range(70)]), ([1500], [1500]),
         ([3, 2], [2000, 3]), ([64, 64], [64, 500]), ([700, 1, 33, 1, 129], [700, 90, 33, 3000, 1200])],
        [([1, 1], [5, 530]), ([20, 1], [40, 9])],
    )  # fmt: skip
    for (h, kv, d), (queries, contexts), dtype in itertools.product(heads, steps, FLOATS):
        yield attend(h, kv, d, queries, contexts, dtype)
    h, kv, d = heads[0]
    for queries, contexts in steps:
        for options in ({"sliding_window": 100}, {"soft_cap": 20.0}, {"sinks": True}, {"alibi_slopes": True}):
            yield attend(h, kv, d, queries, contexts, BF16, **options)
        for block_size in scale.of((1, 5, 32, 256), (32,)):
            yield attend(h, kv, d, queries, contexts, BF16, block_size=block_size)
        for cache in (FP32, FP16, FP8) if scale.has_fp8 else (FP32, FP16):
            yield attend(h, kv, d, queries, contexts, BF16, cache=cache, k_scale=0.5, v_scale=2.0)


def attend(
    heads: int, kv_heads: int, dim: int, queries: list[int], contexts: list[int], dtype: torch.dtype, *, block_size: int = 16,
    cache: torch.dtype | None = None, **options: Any,
) -> float:  # fmt: skip
    """Blocks shuffled; what is not in use is NaN in the cache and far out of it in the tables."""
    needed = [-(-context // block_size) for context in contexts]
    kv = poisoned(2, sum(needed) + 3, kv_heads, block_size, dim, dtype=cache or dtype)
    free = torch.randperm(kv.shape[1], device="cpu").tolist()
    tables = torch.full((len(contexts), max(needed) + 2), 2**30, dtype=torch.int32)
    for seq, (count, context) in enumerate(zip(needed, contexts, strict=True)):
        blocks = torch.tensor([free.pop() for _ in range(count)], dtype=torch.int32)
        tables[seq, :count] = blocks
        content = torch.randn(2, count, block_size, kv_heads, dim)
        content.view(2, count * block_size, kv_heads, dim)[:, context:] = torch.nan
        kv[:, blocks.long()] = content.transpose(2, 3).to(kv.dtype)
    starts = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32)
    q = torch.randn(sum(queries), heads + 2 * kv_heads, dim).to(dtype)[:, :heads]
    for name, make in (("sinks", lambda: torch.randn(heads).to(dtype)), ("alibi_slopes", lambda: torch.rand(heads))):
        if options.get(name):
            options[name] = make()
    given = (q, kv, tables, starts, torch.tensor(contexts, dtype=torch.int32), dim**-0.5)
    ours, _ = ops("attention")
    out = ours.paged_attention(*given, poisoned(*q.shape, dtype=dtype), **options)
    return worst(out, reference_attention(*given, **options), BOUND[dtype])


def latent_attention(scale: Scale) -> Outcome:
    steps: list[tuple[list[int], list[int]]] = scale.of(
        [([1], [20000]), ([1] * 70, [900 + i for i in range(70)]), ([700, 1, 33], [700, 90, 3000])],
        [([1, 1], [5, 530]), ([20, 1], [40, 9])],
    )
    sizes = scale.of(((16, 512, 64), (128, 512, 64), (20, 256, 32), (3, 80, 16)), ((3, 32, 16),))
    for (heads, rank, tail), (queries, contexts), dtype in itertools.product(sizes, steps, FLOATS):
        if dtype == FP32 and rank > 128:
            continue
        needed = [-(-context // 16) for context in contexts]
        cache = torch.randn(1, sum(needed), 1, 16, rank + tail).to(dtype)
        tables = torch.full((len(contexts), max(needed) + 2), 2**30, dtype=torch.int32)
        free = torch.randperm(sum(needed)).int()
        for row, count, at in zip(tables, needed, itertools.accumulate(needed, initial=0), strict=False):
            row[:count] = free[at : at + count]
        starts = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32)
        q, lengths = torch.randn(sum(queries), heads, rank + tail).to(dtype), torch.tensor(contexts, dtype=torch.int32)
        found = [op.latent_attention(q, cache, tables, starts, lengths, 0.07, rank) for op in ops("attention")]
        yield worst(*found, BOUND[dtype])


def small_ops(scale: Scale) -> Outcome:
    rows, columns = scale.of((0, 1, 1000), (0, 3)), scale.of((1, 63, 576, 4096, 8192, 14336), (63,))
    for dtype, r, c in itertools.product(FLOATS, rows, columns):
        for name, call in calls_of_small_ops(r, c, dtype):
            ours, reference = ops(name)
            yield worst(call(ours), call(reference), BOUND[dtype])
    yield from (rotate(*case) for case in itertools.product(FLOATS, scale.of((1, 777), (3,)), (False, True)))
    caches = (*FLOATS, FP8) if scale.has_fp8 else FLOATS
    yield from (store(*case) for case in itertools.product(FLOATS, caches, scale.of((1, 2000), (9,))))


def calls_of_small_ops(rows: int, columns: int, dtype: torch.dtype) -> list[tuple[str, Callable[[Any], Tensor]]]:
    sizes = ((rows, columns), (rows, columns), (columns,), (rows, 2 * columns))
    x, residual, weight, wide = (torch.randn(size).to(dtype) for size in sizes)
    return [
        ("norm", lambda op: op.rms_norm(x, weight, 1e-5)),
        ("norm", lambda op: op.rms_norm(x, weight, 1e-5, plus_one=True)),
        ("norm", lambda op: op.layer_norm(x, weight, weight, 1e-5)),
        ("norm", lambda op: op.add_rms_norm(x, residual.clone(), weight, 1e-5)),
        ("activation", lambda op: op.silu_and_mul(wide)),
        ("activation", lambda op: op.gelu_and_mul(wide)),
        ("activation", lambda op: op.gelu_and_mul(wide, approximate="none")),
        ("activation", lambda op: op.activate(x, "relu2")),
    ]


def rotate(dtype: torch.dtype, tokens: int, interleaved: bool) -> float:
    packed, angles = torch.randn(tokens, 48, 128).to(dtype), torch.rand(4096, 32) * 6
    positions, table = torch.randint(0, 4096, (tokens,)), torch.cat((angles.cos(), angles.sin()), dim=1)
    turned = [packed.clone(), packed.clone()]
    for op, x in zip(ops("rotary"), turned, strict=True):
        op.apply_rotary(x[:, :32], x[:, 32:40], positions, table, interleaved=interleaved)
    return worst(*turned, BOUND[dtype])


def store(dtype: torch.dtype, cache: torch.dtype, tokens: int) -> float:
    packed, slots = torch.randn(tokens, 48, 128).to(dtype) * 300, torch.randperm(16 * (tokens // 8 + 1))[:tokens]
    slots[1::5] = -1
    written = [poisoned(2, tokens // 8 + 1, 8, 16, 128, dtype=cache) for _ in range(2)]
    for op, kv in zip(ops("kv_write"), written, strict=True):
        op.write_kv(packed[:, 32:40], packed[:, 40:], kv, slots, k_scale=0.5, v_scale=2.0)
    return worst(*written, 0.13 if cache == FP8 else max(BOUND[dtype], BOUND[cache]))


def linear(scale: Scale) -> Outcome:
    shapes = scale.of(((4096, 6144), (14336, 4096), (576, 1536), (96, 33)), ((96, 33),))
    for (k, n), m, dtype in itertools.product(shapes, scale.of((1, 3, 16, 17, 64, 300, 2000), (1, 20)), (BF16, FP16, FP32)):
        weight, bias, x = torch.randn(n, k) * k**-0.5, torch.randn(n).to(dtype), torch.randn(m, k).to(dtype)
        ours, reference = ops("gemm_int8")
        packed = reference.pack(weight)
        exact = x.float() @ (packed.data.float() * packed.scales).T + bias.float()
        yield worst(ours.linear(x, packed, bias), exact, max(BOUND[dtype], 1e-4))
        for bits in (4, 8):
            ours, reference = ops("gemm_grouped")
            values = torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8)
            some = (torch.rand(n, k // 32) * 2.0**-bits * k**-0.5).half()
            grouped = reference.pack(values, some, -some * 2.0 ** (bits - 1), bits)
            yield worst(ours.linear(x, grouped, bias), reference.linear(x, grouped, bias), BOUND[dtype])
        ours, reference = ops("gemm_fp8")
        for shape in ((1,), (n, 1), (-(-n // 128), -(-k // 128))) if scale.has_fp8 else ():
            fp8 = reference.pack((torch.randn(n, k) * 20).to(FP8), (torch.rand(shape) + 1) * 0.02 * k**-0.5, dtype)
            yield worst(ours.linear(x, fp8, bias), reference.linear(x, fp8, bias), max(BOUND[dtype], 2e-2))


def experts(scale: Scale) -> Outcome:
    sizes = scale.of(((64, 8, 2048, 768), (8, 2, 4096, 1000), (32, 4, 576, 288)), ((5, 2, 48, 40),))
    for (count, top, hidden, size), tokens, dtype in itertools.product(sizes, scale.of((1, 17, 600), (9,)), FLOATS):
        x, shares = torch.randn(tokens, hidden).to(dtype), torch.rand(tokens, top)
        chosen = torch.rand(tokens, count).topk(top).indices
        gate_up = (torch.randn(count, 2 * size, hidden) * hidden**-0.5).to(dtype)
        down = (torch.randn(count, hidden, size) * size**-0.5).to(dtype)
        biases = torch.randn(count, 2 * size).to(dtype), torch.randn(count, hidden).to(dtype)
        for more, limit in (((), 0.0), (biases, 2.0)):
            found = [op.mix(x, chosen, shares, gate_up, down, *more, limit=limit) for op in ops("moe")]
            yield worst(*found, 2 * BOUND[dtype])
        logits, bias = torch.randn(tokens, count) * 2, torch.randn(count)
        for how in ({"renormalize": True}, {"bias": bias, "sigmoid": True, "scale": 2.5}):
            routed = [op.route(logits, top, **how) for op in ops("moe")]
            yield worst(routed[0][0], routed[1][0], 1e-9)
            yield worst(routed[0][1], routed[1][1], 1e-5)


def sampling(scale: Scale) -> Outcome:
    """Tokens are the same but for a few that rounding, or the order of equal logits, moves over a border."""
    options = list(itertools.product((0.0, 0.3, 1.0, 2.0), (0, 1, 20, 300, 3000), (1.0, 0.9, 0.4), (0.0, 0.05)))
    ours, reference = ops("sampling")
    for columns, dtype in itertools.product(scale.of((1, 1000, 32000, 128256, 151936), (1000,)), FLOATS):
        logits = (torch.randn(len(options), columns) * 3).to(dtype)
        params, seeds = torch.tensor(options, dtype=torch.float64), torch.randint(0, 2**62, (len(options), 2))
        chosen, expected = (op.choose(logits, None, params, seeds) for op in (ours, reference))
        yield (chosen != expected).double().mean().item() / (0.02 if dtype == FP32 else 0.25)
        tokens = torch.randint(0, columns, (len(options),))
        found = [op.logprobs(logits, None, tokens, min(5, columns), columns) for op in (ours, reference)]
        yield worst(found[0][0], found[1][0], 1e-4)
        yield worst(found[0][2], found[1][2], 1e-9)
        wide, cells = logits.float(), torch.randperm(logits.numel())[:5000]
        given = cells, (cells % 3).float(), cells // columns, torch.rand(len(options), 3) + 0.5
        changed = wide.clone(), wide.clone()
        for op, copy in zip((ours, reference), changed, strict=True):
            op.penalize(copy, *given)
        yield worst(*changed, 1e-5)


TINY: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 32},
    "Mistral": {"sliding_window": 24},
    "Gemma2": {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 32},
}
SIZES = {
    "vocab_size": 500, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip


def tiny_models(scale: Scale) -> Outcome:
    """Greedy tokens equal those of transformers on the same device, with graphs and without."""
    for name, more in TINY.items() if not scale.small else [("Llama", {})]:
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**SIZES, **more)
        model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval().to(scale.device)
        rng = random.Random(0)
        prompts = [[rng.randrange(500) for _ in range(n)] for n in scale.of((1, 40, 200, 77, 5), (9, 1))]
        new_tokens = scale.of(24, 3)
        expected = [greedy(model, prompt, new_tokens) for prompt in prompts]
        with TemporaryDirectory() as folder, torch.device("cpu"):
            model.save_pretrained(folder)
            for eager in (False, True):
                options = {"dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 128, "enforce_eager": eager}
                worker = models.make_worker(Path(folder), 200, device=scale.device, **options)
                batch = models.Batch(worker, 16, 20)
                tokens = [list(result.token_ids) for result in batch.prefill(prompts, 64)]
                for _ in range(new_tokens - 1):
                    for known, result in zip(tokens, batch.decode(), strict=True):
                        known += result.token_ids
                yield 0.0 if tokens == expected else float("inf")


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    known = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            known.append(int(model(torch.tensor([known])).logits[0, -1].argmax()))
    return known[len(prompt) :]


CHECKS: dict[str, Callable[[Scale], Outcome]] = {
    "attention": attention,
    "latent attention": latent_attention,
    "norm, activation, rotary, KV write": small_ops,
    "int8, fp8, 4-bit and 8-bit linear": linear,
    "mixture of experts": experts,
    "sampling, logprobs, penalties": sampling,
    "tiny models against transformers": tiny_models,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="checks with this in their name")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    torch.set_default_device(args.device)
    scale = Scale(args.device)
    print("| Check | Cases | Beyond the bound | Largest error, share of its bound | Seconds |\n|---|---|---|---|---|")
    failed = False
    for name, check in CHECKS.items():
        if args.only in name:
            torch.manual_seed(0)
            began = time.monotonic()
            errors = list(check(scale))
            wrong = sum(not error <= 1 for error in errors)
            failed |= wrong > 0
            print(f"| {name} | {len(errors)} | {wrong} | {max(errors):.2f} | {time.monotonic() - began:.0f} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
