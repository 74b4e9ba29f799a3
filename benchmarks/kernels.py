"""How near is each CPU kernel to the machine's limits? One line per op, shape and batch, beside torch's own op.

    python benchmarks/kernels.py [--ops linear attention ...] [--isa NAME] [--threads N]

Shapes are SmolLM2-135M's. Weights and caches rotate through more memory than the caches hold. The limits are measured at the
start and at the end, since a shared machine changes speed by itself: read bandwidth by a sum over 512 MiB, bf16 peak by
torch's matmul of 2048 x 2048. A line whose time is noisy (median 1.5 times the best) ends in "~".
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
import torch.nn.functional as F

from minivllm import _cpu
from minivllm.kernels import ops_for
from minivllm.kernels.kv_pages import row_width

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTERMEDIATE, VOCAB = 9, 3, 64, 576, 1536, 49152
LINEARS = {
    "qkv": (HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM),
    "out": (HIDDEN, HIDDEN),
    "gate_up": (HIDDEN, 2 * INTERMEDIATE),
    "down": (INTERMEDIATE, HIDDEN),
    "head": (HIDDEN, VOCAB),
}
BATCHES = (1, 4, 8, 16, 32, 64, 256, 1024)
COLD_BYTES = 200e6
BFLOAT16 = torch.bfloat16

Run = Callable[[], object]


@dataclass(slots=True)
class Line:
    name: str
    runs: list[Run]  # the same work on different memory
    plain: list[Run]  # the same by torch, or empty
    bytes: float
    flops: float


def measure(runs: list[Run], seconds: float) -> tuple[float, float]:
    """Best and median seconds per run."""
    for run in runs[:2]:
        run()
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while not times or time.perf_counter() < deadline:
        begin = time.perf_counter()
        for run in runs:
            run()
        times.append((time.perf_counter() - begin) / len(runs))
    return min(times), statistics.median(times)


def probe() -> tuple[float, float]:
    """Read bandwidth in bytes/s and bf16 peak in FLOP/s."""
    memory = torch.ones(512 * 2**20 // 4)
    square = torch.ones(2048, 2048, dtype=BFLOAT16)
    read, _ = measure([memory.sum], 0.3)
    multiply, _ = measure([lambda: square @ square], 0.3)
    return memory.nbytes / read, 2 * 2048**3 / multiply


def linear_lines() -> Iterator[Line]:
    gemm = ops_for("cpu").gemm
    return _lines_of("linear", gemm, 2, lambda n, k: gemm.pack(torch.randn(n, k).to(BFLOAT16)))


def int8_lines() -> Iterator[Line]:
    gemm = ops_for("cpu").gemm_int8
    return _lines_of("linear int8", gemm, 1, lambda n, k: gemm.pack(torch.randn(n, k).to(BFLOAT16)))


def float32_lines() -> Iterator[Line]:
    gemm = ops_for("cpu").gemm
    return _lines_of("linear fp32", gemm, 4, lambda n, k: gemm.pack(torch.randn(n, k)), torch.float32)


def grouped_lines() -> Iterator[Line]:
    return _grouped_lines("4-bit", 4)


def codes_lines() -> Iterator[Line]:
    for title, bits, codes in (("8-bit", 8, None), ("nf4", 4, "nf4"), ("e4m3", 8, "e4m3")):
        yield from _grouped_lines(title, bits, codes)


def _grouped_lines(title: str, bits: int, codes: str | None = None) -> Iterator[Line]:
    gemm = ops_for("cpu").gemm_grouped

    def make(n: int, k: int) -> object:
        scales = torch.rand(n, k // 32).half() * 0.01
        return gemm.pack(torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8), scales, scales * -8, bits, codes)

    return _lines_of(f"linear {title}", gemm, (bits + 1) / 8, make)


def _lines_of(
    title: str, gemm: ModuleType, weight_bytes: float, make: Callable[[int, int], object], dtype: torch.dtype = BFLOAT16
) -> Iterator[Line]:
    """Beside them, torch's own op multiplies weights in the type of x."""
    for name, (k, n) in LINEARS.items():
        packed = [make(n, k) for _ in range(max(2, int(COLD_BYTES / (weight_bytes * k * n))))]
        weights = [torch.randn(n, k).to(dtype) for _ in range(max(2, int(COLD_BYTES / (dtype.itemsize * k * n))))]
        for m in BATCHES:
            if name == "head" and m > 64:
                continue
            x = torch.randn(m, k).to(dtype)
            own = [lambda x=x, w=w: gemm.linear(x, w) for w in packed]
            plain = [lambda x=x, w=w: F.linear(x, w) for w in weights]
            num_bytes = weight_bytes * k * n + dtype.itemsize * m * (k + n)
            yield Line(f"{title} {name} {k}x{n} M={m}", own, plain, num_bytes, 2 * m * k * n)


def attention_lines() -> Iterator[Line]:
    ops = ops_for("cpu").attention
    decodes = [(1, 1, 256), (1, 1, 2048), (1, 1, 8192), (8, 1, 256), (32, 1, 256), (32, 1, 2048), (64, 1, 1024)]
    prompts = [(1, 256, 256), (1, 2048, 2048), (4, 64, 1024)]
    cases = [*((case, 0) for case in decodes + prompts), ((4, 1, 2048), 1984), ((32, 1, 2048), 1984)]
    for ((seqs, queries, context), shared), kept in itertools.product(cases, (BFLOAT16, torch.int8)):
        blocks, shared_blocks = -(-context // 16), shared // 16
        num_blocks = shared_blocks + seqs * (blocks - shared_blocks)
        layers = max(1, min(30, int(COLD_BYTES / (num_blocks * 2 * KV_HEADS * 16 * HEAD_DIM * kept.itemsize))))
        shape = (2, num_blocks, KV_HEADS, 16, row_width(HEAD_DIM, kept))
        # Four bytes of 60 are a scale of 0.01.
        few = torch.full(shape, 60, dtype=kept) if kept == torch.int8 else torch.randn(shape).to(kept)
        caches = [few.clone() for _ in range(layers)]
        first, own = torch.randperm(num_blocks).int().split((shared_blocks, num_blocks - shared_blocks))
        tables = torch.cat([first.expand(seqs, -1), own.view(seqs, -1)], dim=1)
        starts = torch.arange(seqs + 1).int() * queries
        lengths = torch.full((seqs,), context).int()
        q = torch.randn(seqs * queries, HEADS, HEAD_DIM).to(BFLOAT16)
        k, v = torch.randn(2, seqs, HEADS, context, HEAD_DIM).to(BFLOAT16)
        dense = q.view(seqs, queries, HEADS, HEAD_DIM).transpose(1, 2)
        plain = [lambda d=dense, k=k, v=v, causal=queries == context: F.scaled_dot_product_attention(d, k, v, is_causal=causal)]
        run = [lambda kv=kv, t=tables, s=starts, n=lengths, q=q: ops.paged_attention(q, kv, t, s, n, 0.125) for kv in caches]
        pairs = seqs * sum(range(context - queries + 1, context + 1))
        name = f"attention {seqs} x {queries} queries, {context} {'int8 ' if kept == torch.int8 else ''}keys"
        name += f", {shared} shared" if shared else ""
        num_bytes = (context * seqs - shared * (seqs - 1)) * 2 * KV_HEADS * shape[-1] * kept.itemsize
        yield Line(name, run, plain, num_bytes, pairs * HEADS * HEAD_DIM * 4)


def latent_lines() -> Iterator[Line]:
    """DeepSeek V2-Lite: 16 heads, vectors of 512 + 64."""
    rank, width, heads = 512, 576, 16
    families = ops_for("cpu").attention, ops_for("cpu", use_extension=False).attention
    for seqs, queries, context in ((1, 1, 512), (8, 1, 512), (32, 1, 512), (1, 512, 512)):
        blocks = context // 16
        layers = max(1, min(27, int(COLD_BYTES / (seqs * context * width * 2))))
        caches = [torch.randn(1, seqs * blocks, 1, 16, width).to(BFLOAT16) for _ in range(layers)]
        q = torch.randn(seqs * queries, heads, width).to(BFLOAT16)
        of_batch = (
            torch.randperm(seqs * blocks).int().view(seqs, blocks),
            torch.arange(seqs + 1).int() * queries,
            torch.full((seqs,), context).int(),
        )
        own, plain = (
            [partial(ops.latent_attention, q, cache, *of_batch, width**-0.5, rank) for cache in caches] for ops in families
        )
        pairs = seqs * sum(range(context - queries + 1, context + 1))
        name = f"latent {seqs} x {queries} queries, {context} keys"
        yield Line(name, own, plain[:2], seqs * context * width * 2, pairs * heads * (width + rank) * 2)


def expert_lines() -> Iterator[Line]:
    """Granite 3.1 1B-A400M, and Qwen3-30B-A3B with half of its experts."""
    families = ops_for("cpu").moe, ops_for("cpu", use_extension=False).moe
    models = (1024, 512, 32, 8), (2048, 768, 64, 8)
    for (hidden, size, num_experts, top_k), tokens in itertools.product(models, (1, 4, 32, 256)):
        shapes = (2 * size, hidden), (hidden, size)
        layers = -(-int(COLD_BYTES) // (num_experts * 3 * hidden * size * 2))
        weights = [[torch.randn(num_experts, *shape).to(BFLOAT16) / 50 for shape in shapes] for _ in range(layers)]
        x, shares = torch.randn(tokens, hidden).to(BFLOAT16), torch.rand(tokens, top_k)
        chosen = torch.rand(tokens, num_experts).topk(top_k).indices
        own, plain = ([partial(ops.mix, x, chosen, shares, *map(ops.pack, stack)) for stack in weights] for ops in families)
        num_bytes, flops = len(chosen.unique()) * 3 * hidden * size * 2, tokens * top_k * 3 * hidden * size * 2
        yield Line(f"experts {num_experts} of {hidden}x{size}, {tokens} tokens", own, plain, num_bytes, flops)


def row_lines() -> Iterator[Line]:
    ops, plain = ops_for("cpu"), ops_for("cpu", use_extension=False)
    cos_sin, weight = torch.randn(8192, HEAD_DIM), torch.randn(HIDDEN).to(BFLOAT16)
    for tokens in (1, 32, 1024):
        x, residual, gate = (torch.randn(tokens, n).to(BFLOAT16) for n in (HIDDEN, HIDDEN, 2 * INTERMEDIATE))
        qkv = torch.randn(tokens, HEADS + 2 * KV_HEADS, HEAD_DIM).to(BFLOAT16)
        q, k, v = qkv.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        positions = torch.arange(tokens)
        kv = torch.zeros(2, 128, KV_HEADS, 16, HEAD_DIM, dtype=BFLOAT16)
        works: dict[str, tuple[float, Callable[..., Run]]] = {
            "norm.add_rms_norm": (8 * x.numel(), lambda o, x=x, r=residual: lambda: o.norm.add_rms_norm(x, r, weight, 1e-5)),
            "activation.silu_and_mul": (3 * gate.numel(), lambda o, g=gate: lambda: o.activation.silu_and_mul(g)),
            "rotary.apply_rotary": (
                4 * (q.numel() + k.numel()),
                lambda o, q=q, k=k, p=positions: lambda: o.rotary.apply_rotary(q, k, p, cos_sin),
            ),
            "kv_write.write_kv": (
                8 * k.numel(),
                lambda o, k=k, v=v, c=kv, p=positions: lambda: o.kv_write.write_kv(k, v, c, p),
            ),
        }
        for name, (size, make) in works.items():
            yield Line(f"{name} {tokens} tokens", [make(ops)], [make(plain)], size, 0)


LINES = {
    "linear": linear_lines,
    "float32": float32_lines,
    "int8": int8_lines,
    "grouped": grouped_lines,
    "codes": codes_lines,
    "attention": attention_lines,
    "latent": latent_lines,
    "experts": expert_lines,
    "rows": row_lines,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", choices=LINES, default=list(LINES))
    parser.add_argument("--isa", help="instruction set (default: the best of this CPU)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.3, help="per line and side")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    _cpu.set_threads(options.threads)
    if options.isa:
        _cpu.set_isa(options.isa)
    bandwidth, peak = probe()
    print(f"isa {_cpu.isa()}, {options.threads} threads: reads {bandwidth / 1e9:.0f} GB/s, bf16 {peak / 1e9:.0f} GFLOP/s")
    print(f"{'':48}{'us':>9}{'GB/s':>8}{'of read':>9}{'GFLOP/s':>9}{'of peak':>9}{'torch us':>10}{'gain':>7}")
    with torch.inference_mode():
        for line in itertools.chain.from_iterable(LINES[op]() for op in options.ops):
            best, median = measure(line.runs, options.seconds)
            plain = measure(line.plain, options.seconds)[0] if line.plain else float("nan")
            rate, arithmetic = line.bytes / best, line.flops / best
            print(
                f"{line.name:48}{best * 1e6:9.1f}{rate / 1e9:8.1f}{rate / bandwidth:9.0%}{arithmetic / 1e9:9.0f}"
                f"{arithmetic / peak:9.0%}{plain * 1e6:10.1f}{plain / best:7.1f}{' ~' if median > 1.5 * best else ''}",
                flush=True,
            )
    bandwidth, peak = probe()
    print(f"at the end: reads {bandwidth / 1e9:.0f} GB/s, bf16 {peak / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
