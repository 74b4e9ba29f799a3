"""Is everything right on this GPU? All kernels against the reference, and tiny models against transformers.

    PYTHONPATH=. python benchmarks/gpu/check.py [--only attention] [--device cuda]

Needs torch, triton and transformers. Prints one table, then the cases that failed, and fails if there are any. Each case may
raise, crash or hang without harm to the others: they run in processes of their own, several at a time. With $OUT set, each
case is a line of $OUT/check.jsonl. `--device cpu`, with TRITON_INTERPRET=1, tries the program itself on small sizes.
"""

import argparse
import functools
import importlib
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bare
import isolated
import torch
from torch import Tensor

bare.provide()

import models  # noqa: E402
from models import Scale  # noqa: E402

from minivllm.kernels.reference.attention import paged_attention as reference_attention  # noqa: E402

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
BOUND = {FP32: 5e-5, FP16: 4e-3, BF16: 2e-2}
FLOATS = (FP32, FP16, BF16)
_SHOWN = 40  # cases that failed; check.jsonl has them all
SHORT = {FP32: "fp32", FP16: "fp16", BF16: "bf16", FP8: "fp8"}

# A name, and what gives the error as a share of its bound: beyond 1 is wrong.
Cases = Iterator[tuple[str, Callable[[], float]]]
Steps = dict[str, tuple[list[int], list[int]]]  # queries and contexts of each sequence


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


def attention(scale: Scale) -> Cases:
    heads = scale.of(((32, 8, 128), (9, 3, 64), (8, 4, 256), (32, 32, 96), (71, 1, 64), (64, 8, 64), (5, 5, 80)), ((4, 2, 64),))
    steps: Steps = scale.of(
        {
            "5 tokens": ([1] * 5, [1, 17, 700, 3000, 64]),
            "1 x 20000": ([1], [20000]),
            "70 tokens": ([1] * 70, [900 + i for i in range(70)]),
            "prompt": ([1500], [1500]),
            "chunks": ([3, 2], [2000, 3]),
            "two chunks of 64": ([64, 64], [64, 500]),
            "mixed": ([700, 1, 33, 1, 129], [700, 90, 33, 3000, 1200]),
        },
        {"2 tokens": ([1, 1], [5, 530]), "mixed": ([20, 1], [40, 9])},
    )
    caches = (FP32, FP16, FP8) if scale.has_fp8 else (FP32, FP16)
    for (h, kv, d), (what, step), dtype in itertools.product(heads, steps.items(), FLOATS):
        yield f"{h}/{kv}x{d} {SHORT[dtype]}, {what}", partial(attend, h, kv, d, *step, dtype)
    h, kv, d = heads[0]
    for what, step in steps.items():
        for option in ({"sliding_window": 100}, {"soft_cap": 20.0}, {"sinks": True}, {"alibi_slopes": True}):
            yield f"{next(iter(option))}, {what}", partial(attend, h, kv, d, *step, BF16, **option)
        for block_size in scale.of((1, 5, 32, 256), (32,)):
            yield f"blocks of {block_size}, {what}", partial(attend, h, kv, d, *step, BF16, block_size=block_size)
        for cache in caches:
            call = partial(attend, h, kv, d, *step, BF16, cache=cache, k_scale=0.5, v_scale=2.0)
            yield f"{SHORT[cache]} cache, {what}", call
    if not scale.small:
        for what in ("5 tokens", "mixed"):
            yield f"at the end of 16 GB of cache, {what}", partial(attend, h, kv, d, *steps[what], BF16, unused=250000)


def attend(
    heads: int, kv_heads: int, dim: int, queries: list[int], contexts: list[int], dtype: torch.dtype, *, block_size: int = 16,
    cache: torch.dtype | None = None, unused: int = 0, **options: Any,
) -> float:  # fmt: skip
    """Blocks shuffled, after `unused` ones; what is not in use is NaN in the cache and far out of it in the tables."""
    needed = [-(-context // block_size) for context in contexts]
    shape = (2, unused + sum(needed) + 3, kv_heads, block_size, dim)
    kv = torch.empty(shape, dtype=cache or dtype) if unused else poisoned(*shape, dtype=cache or dtype)
    free = (unused + torch.randperm(kv.shape[1] - unused, device="cpu")).tolist()
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


def latent_attention(scale: Scale) -> Cases:
    steps: Steps = scale.of(
        {
            "1 x 20000": ([1], [20000]),
            "70 tokens": ([1] * 70, [900 + i for i in range(70)]),
            "mixed": ([700, 1, 33], [700, 90, 3000]),
        },
        {"2 tokens": ([1, 1], [5, 530]), "mixed": ([20, 1], [40, 9])},
    )
    sizes = scale.of(((16, 512, 64), (128, 512, 64), (20, 256, 32), (3, 80, 16)), ((3, 32, 16),))
    for (heads, rank, tail), (what, step), dtype in itertools.product(sizes, steps.items(), FLOATS):
        if dtype != FP32 or rank <= 128:
            yield f"{heads} x {rank} + {tail} {SHORT[dtype]}, {what}", partial(attend_latent, heads, rank, tail, *step, dtype)


def attend_latent(heads: int, rank: int, tail: int, queries: list[int], contexts: list[int], dtype: torch.dtype) -> float:
    needed = [-(-context // 16) for context in contexts]
    cache = torch.randn(1, sum(needed), 1, 16, rank + tail).to(dtype)
    tables = torch.full((len(contexts), max(needed) + 2), 2**30, dtype=torch.int32)
    free = torch.randperm(sum(needed)).int()
    for row, count, at in zip(tables, needed, itertools.accumulate(needed, initial=0), strict=False):
        row[:count] = free[at : at + count]
    starts = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32)
    q, lengths = torch.randn(sum(queries), heads, rank + tail).to(dtype), torch.tensor(contexts, dtype=torch.int32)
    found = [op.latent_attention(q, cache, tables, starts, lengths, 0.07, rank) for op in ops("attention")]
    return worst(*found, BOUND[dtype])


def small_ops(scale: Scale) -> Cases:
    rows, columns = scale.of((0, 1, 1000), (0, 3)), scale.of((1, 63, 576, 4096, 8192, 14336), (63,))
    for name, dtype, r, c in itertools.product(SMALL_OPS, FLOATS, rows, columns):
        yield f"{name} {SHORT[dtype]}, {r} x {c}", partial(small_op, name, r, c, dtype)
    for dtype, tokens, interleaved in itertools.product(FLOATS, scale.of((1, 777), (3,)), (False, True)):
        name = f"rotary {SHORT[dtype]}, {tokens} tokens{', interleaved' * interleaved}"
        yield name, partial(rotate, dtype, tokens, interleaved)
    caches = (*FLOATS, FP8) if scale.has_fp8 else FLOATS
    for dtype, cache, tokens in itertools.product(FLOATS, caches, scale.of((1, 2000), (9,))):
        yield f"KV write {SHORT[dtype]} to {SHORT[cache]}, {tokens} tokens", partial(store, dtype, cache, tokens)
    if not scale.small:
        yield "KV write to the end of 16 GB of cache", partial(store, BF16, BF16, 2000, 250000)


SMALL_OPS: dict[str, tuple[str, Callable[[Any, Tensor, Tensor, Tensor, Tensor], Tensor]]] = {
    "RMS norm": ("norm", lambda op, x, residual, weight, wide: op.rms_norm(x, weight, 1e-5)),
    "RMS norm plus one": ("norm", lambda op, x, residual, weight, wide: op.rms_norm(x, weight, 1e-5, plus_one=True)),
    "added RMS norm": ("norm", lambda op, x, residual, weight, wide: op.add_rms_norm(x, residual.clone(), weight, 1e-5)),
    "layer norm": ("norm", lambda op, x, residual, weight, wide: op.layer_norm(x, weight, weight, 1e-5)),
    "SiLU and mul": ("activation", lambda op, x, residual, weight, wide: op.silu_and_mul(wide)),
    "GELU by tanh and mul": ("activation", lambda op, x, residual, weight, wide: op.gelu_and_mul(wide)),
    "GELU and mul": ("activation", lambda op, x, residual, weight, wide: op.gelu_and_mul(wide, approximate="none")),
    "squared ReLU": ("activation", lambda op, x, residual, weight, wide: op.activate(x, "relu2")),
}


def small_op(name: str, rows: int, columns: int, dtype: torch.dtype) -> float:
    sizes = ((rows, columns), (rows, columns), (columns,), (rows, 2 * columns))
    given = [torch.randn(size).to(dtype) for size in sizes]
    module, call = SMALL_OPS[name]
    ours, reference = ops(module)
    return worst(call(ours, *given), call(reference, *given), BOUND[dtype])


def rotate(dtype: torch.dtype, tokens: int, interleaved: bool) -> float:
    packed, angles = torch.randn(tokens, 48, 128).to(dtype), torch.rand(4096, 32) * 6
    positions, table = torch.randint(0, 4096, (tokens,)), torch.cat((angles.cos(), angles.sin()), dim=1)
    turned = [packed.clone(), packed.clone()]
    for op, x in zip(ops("rotary"), turned, strict=True):
        op.apply_rotary(x[:, :32], x[:, 32:40], positions, table, interleaved=interleaved)
    return worst(*turned, BOUND[dtype])


def store(dtype: torch.dtype, cache: torch.dtype, tokens: int, unused: int = 0) -> float:
    """After `unused` blocks."""
    packed, slots = torch.randn(tokens, 48, 128).to(dtype) * 300, torch.randperm(16 * (tokens // 8 + 1))[:tokens]
    slots[1::5] = -1
    written = [poisoned(2, tokens // 8 + 1, 8, 16, 128, dtype=cache) for _ in range(2)]
    targets = [written[0] if not unused else torch.empty(2, unused + tokens // 8 + 1, 8, 16, 128, dtype=cache), written[1]]
    targets[0][:, unused:] = written[0]
    for op, kv, before in zip(ops("kv_write"), targets, (unused, 0), strict=True):
        at = torch.where(slots < 0, slots, slots + 16 * before)
        op.write_kv(packed[:, 32:40], packed[:, 40:], kv, at, k_scale=0.5, v_scale=2.0)
    return worst(targets[0][:, unused:], targets[1], 0.13 if cache == FP8 else max(BOUND[dtype], BOUND[cache]))


def linear(scale: Scale) -> Cases:
    shapes = scale.of(((4096, 6144), (14336, 4096), (576, 1536), (96, 33)), ((96, 33),))
    kinds = {"int8": int8_linear, "4-bit": partial(grouped_linear, 4), "8-bit": partial(grouped_linear, 8)}
    if scale.has_fp8:
        kinds |= {f"fp8, a scale for {what}": partial(fp8_linear, what) for what in ("all", "each row", "each block")}
    for (kind, call), (k, n), dtype in itertools.product(kinds.items(), shapes, (BF16, FP16, FP32)):
        for m in scale.of((1, 3, 16, 17, 64, 300, 2000), (1, 20)):
            yield f"{kind} {SHORT[dtype]}, {m} x {k} x {n}", partial(call, m, n, k, dtype)


def int8_linear(m: int, n: int, k: int, dtype: torch.dtype) -> float:
    weight, bias, x = torch.randn(n, k) * k**-0.5, torch.randn(n).to(dtype), torch.randn(m, k).to(dtype)
    ours, reference = ops("gemm_int8")
    packed = reference.pack(weight)
    exact = x.float() @ (packed.data.float() * packed.scales).T + bias.float()
    return worst(ours.linear(x, packed, bias), exact, max(BOUND[dtype], 1e-4))


def grouped_linear(bits: int, m: int, n: int, k: int, dtype: torch.dtype) -> float:
    bias, x = torch.randn(n).to(dtype), torch.randn(m, k).to(dtype)
    ours, reference = ops("gemm_grouped")
    values = torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8)
    some = (torch.rand(n, k // 32) * 2.0**-bits * k**-0.5).half()
    weight = reference.pack(values, some, -some * 2.0 ** (bits - 1), bits)
    return worst(ours.linear(x, weight, bias), reference.linear(x, weight, bias), BOUND[dtype])


def fp8_linear(what: str, m: int, n: int, k: int, dtype: torch.dtype) -> float:
    shape = {"all": (1,), "each row": (n, 1), "each block": (-(-n // 128), -(-k // 128))}[what]
    bias, x = torch.randn(n).to(dtype), torch.randn(m, k).to(dtype)
    ours, reference = ops("gemm_fp8")
    weight = reference.pack((torch.randn(n, k) * 20).to(FP8), (torch.rand(shape) + 1) * 0.02 * k**-0.5, dtype)
    return worst(ours.linear(x, weight, bias), reference.linear(x, weight, bias), max(BOUND[dtype], 2e-2))


def experts(scale: Scale) -> Cases:
    sizes = scale.of(((64, 8, 2048, 768), (8, 2, 4096, 1000), (32, 4, 576, 288)), ((5, 2, 48, 40),))
    for size, tokens, dtype in itertools.product(sizes, scale.of((1, 17, 600, 6000), (9,)), FLOATS):
        count, top, *_ = size
        name = f"{SHORT[dtype]}, {tokens} tokens, {top} of {count}"
        yield name, partial(mix, *size, tokens, dtype, biased=False)
        yield f"{name}, biased", partial(mix, *size, tokens, dtype, biased=True)
        for how in ({"renormalize": True}, {"sigmoid": True, "scale": 2.5}):
            yield f"routing of {name}, {next(iter(how))}", partial(route, count, top, tokens, how)


def mix(count: int, top: int, hidden: int, size: int, tokens: int, dtype: torch.dtype, *, biased: bool) -> float:
    x, shares = torch.randn(tokens, hidden).to(dtype), torch.rand(tokens, top)
    chosen = torch.rand(tokens, count).topk(top).indices
    gate_up = (torch.randn(count, 2 * size, hidden) * hidden**-0.5).to(dtype)
    down = (torch.randn(count, hidden, size) * size**-0.5).to(dtype)
    biases = (torch.randn(count, 2 * size).to(dtype), torch.randn(count, hidden).to(dtype)) if biased else ()
    found = [op.mix(x, chosen, shares, gate_up, down, *biases, limit=2.0 * biased) for op in ops("moe")]
    return worst(*found, 2 * BOUND[dtype])


def route(count: int, top: int, tokens: int, how: dict[str, Any]) -> float:
    """Experts are the same but for a few tokens, of which the last bit of a score decides."""
    logits, bias = torch.randn(tokens, count) * 2, torch.randn(count) if "sigmoid" in how else None
    ours, reference = (op.route(logits, top, bias, **how) for op in ops("moe"))
    same = (ours[0] == reference[0]).all(1)
    return max((~same).double().mean().item() / 1e-3, worst(ours[1][same], reference[1][same], 1e-5))


def sampling(scale: Scale) -> Cases:
    for columns, dtype in itertools.product(scale.of((1, 1000, 32000, 128256, 151936), (1000,)), FLOATS):
        for name, call in (("choice", choose), ("logprobs", find_logprobs), ("penalties", penalize)):
            options = OPTIONS[:: scale.of(1, 11)]
            yield f"{name} {SHORT[dtype]}, {columns} columns", partial(call, options, columns, dtype)


Options = list[tuple[float, ...]]  # temperature, top-k, top-p, min-p
OPTIONS: Options = list(itertools.product((0.0, 0.3, 1.0, 2.0), (0, 1, 20, 300, 3000), (1.0, 0.9, 0.4), (0.0, 0.05)))


def choose(options: Options, columns: int, dtype: torch.dtype) -> float:
    """Tokens are the same but for a few that rounding, or the order of equal logits, moves over a border."""
    logits = (torch.randn(len(options), columns) * 3).to(dtype)
    params, seeds = torch.tensor(options, dtype=torch.float64), torch.randint(0, 2**62, (len(options), 2))
    words = torch.randint(-(2**63), 2**63 - 1, (len(options), -(-columns // 64)))
    different = 0.0
    for masks in (None, words):
        chosen, expected = (op.choose(logits, None, params, seeds, masks) for op in ops("sampling"))
        different = max(different, (chosen != expected).double().mean().item())
    return different / (0.02 if dtype == FP32 else 0.25)


def find_logprobs(options: Options, columns: int, dtype: torch.dtype) -> float:
    logits, tokens = (torch.randn(len(options), columns) * 3).to(dtype), torch.randint(0, columns, (len(options),))
    ours, reference = (op.logprobs(logits, None, tokens, min(5, columns), columns) for op in ops("sampling"))
    return max(worst(ours[0], reference[0], 1e-4), worst(ours[2], reference[2], 1e-9))


def penalize(options: Options, columns: int, dtype: torch.dtype) -> float:
    wide, cells = torch.randn(len(options), columns) * 3, torch.randperm(len(options) * columns)[:5000]
    given = cells, (cells % 3).float(), cells // columns, torch.rand(len(options), 3) + 0.5
    changed = wide.clone(), wide.clone()
    for op, copy in zip(ops("sampling"), changed, strict=True):
        op.penalize(copy, *given)
    return worst(*changed, 1e-5)


TINY: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 32},
    "Mistral": {"sliding_window": 24},
    "Gemma2": {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 32},
    "Qwen3Moe": {
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
    },
}
SIZES = {
    "vocab_size": 500, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "attn_implementation": "eager", "experts_implementation": "eager",
}  # fmt: skip


def tiny_models(scale: Scale) -> Cases:
    for name, eager in itertools.product(TINY if not scale.small else ("Llama",), (False, True)):
        yield f"{name}, {'eager' if eager else 'with graphs'}", partial(generate, scale, name, eager, overlapped=False)
    yield "Llama, two steps at a time", partial(generate, scale, "Llama", False, overlapped=True)


def generate(scale: Scale, name: str, eager: bool, *, overlapped: bool) -> float:
    """How far the logits of our tokens are below the greatest, by transformers on the same device."""
    transformers = importlib.import_module("transformers")
    config = getattr(transformers, f"{name}Config")(**SIZES, **TINY[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval().to(scale.device)
    rng = random.Random(0)
    prompts = [[rng.randrange(500) for _ in range(n)] for n in scale.of((1, 40, 200, 77, 5), (9, 1))]
    with TemporaryDirectory() as folder, torch.device("cpu"):
        model.save_pretrained(folder)
        options = {"dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 128, "enforce_eager": eager}
        worker = models.make_worker(Path(folder), 200, device=scale.device, **options)
    batch = models.Batch(worker, 16, 20)
    tokens = [list(result.token_ids) for result in batch.prefill(prompts, 64)]
    for results in batch.decode_many(scale.of(24, 3), overlapped):
        for known, result in zip(tokens, results, strict=True):
            known += result.token_ids
    below = 0.0
    for prompt, answer in zip(prompts, tokens, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + answer], device=scale.device)).logits[0, len(prompt) - 1 : -1].float()
        chosen = logits.gather(1, torch.tensor(answer, device=scale.device)[:, None])[:, 0]
        below = max(below, (logits.amax(1) - chosen).max().item())
    return below / 1e-4


# What takes longest first.
CHECKS: dict[str, Callable[[Scale], Cases]] = {
    "tiny models against transformers": tiny_models,
    "attention": attention,
    "latent attention": latent_attention,
    "norm, activation, rotary, KV write": small_ops,
    "int8, fp8, 4-bit and 8-bit linear": linear,
    "mixture of experts": experts,
    "sampling, logprobs, penalties": sampling,
}


@functools.cache
def cases_of(scale: Scale) -> dict[str, Callable[[], float]]:
    return {f"{check}: {name}": call for check, cases in CHECKS.items() for name, call in cases(scale)}


def run(scale: Scale, name: str) -> isolated.Reply:
    torch.manual_seed(0)
    return {"error_share": cases_of(scale)[name]()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--processes", type=int, default=isolated.PROCESSES)
    parser.add_argument("--seconds", type=float, default=210, help="for all of it; what is not tried by then failed")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    scale = Scale(args.device)
    if args.serve is not None:
        torch.set_default_device(args.device)
        models.interpret_if(scale.small)
        isolated.serve(args.serve, partial(run, scale))
        return
    names = [name for name in cases_of(scale) if args.only in name]
    began, notes = time.monotonic(), isolated.Notes("check.jsonl")
    replies: dict[str, isolated.Reply] = {}
    command = [sys.executable, *sys.argv]
    for name, reply in isolated.ask_all(command, names, servers=args.processes, seconds=90, until=began + args.seconds):
        replies[name] = reply
        notes.add(case=name, **reply)
    failed = report(replies)
    print(f"\n{len(replies)} cases in {time.monotonic() - began:.0f} s")
    sys.exit(failed > 0)


def report(replies: dict[str, isolated.Reply]) -> int:
    """How many failed."""
    print("| Check | Cases | Wrong | Failed | Largest error, share of its bound | Seconds |\n|---|---|---|---|---|---|")
    lines: list[str] = []
    for check in CHECKS:
        found = {name: reply for name, reply in replies.items() if name.startswith(f"{check}: ")}
        shares = [reply["error_share"] for reply in found.values() if "error" not in reply]
        wrong = [f"{name}: {reply['error_share']:.2f}" for name, reply in found.items() if not reply.get("error_share", 0) <= 1]
        raised = [f"{name}: {reply['error']}" for name, reply in found.items() if "error" in reply]
        seconds = sum(reply["seconds"] for reply in found.values())
        if found:
            print(f"| {check} | {len(found)} | {len(wrong)} | {len(raised)} | {max(shares, default=0.0):.2f} | {seconds:.0f} |")
        lines += wrong + raised
    print("\n".join(["", *map(shortened, lines[:_SHOWN]), *([f"and {len(lines) - _SHOWN} more"] if lines[_SHOWN:] else [])]))
    return len(lines)


def shortened(line: str) -> str:
    """Where something died, its last words say why."""
    line = " ".join(line.split())
    return line if len(line) <= 250 else f"{line[:100]} … {line[-147:]}"


if __name__ == "__main__":
    main()
