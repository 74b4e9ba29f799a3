"""How do tokens a second grow with the number of clients and the length of their contexts, and how far is that from the limit?

    python benchmarks/scaling.py MODEL [--clients 1 2 4 …] [--contexts 128 …] [--kv-gib 8] [--plot docs/scaling.png]

The engine core decodes for so many requests at a time, without HTTP. Their contexts are not computed: the cache is filled with
a constant and its blocks are named as if they were, every request with blocks of its own, so that reading them costs what it
does. The limit of a step is the slower of reading weights and contexts at the bandwidth and of all arithmetic at the peak, as
the probes of kernels.py find them before and after each context. Points that the cache cannot hold are left out.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from kernels import probe

from minivllm.config.engine_args import EngineArgs
from minivllm.config.engine_config import EngineConfig
from minivllm.config.model_spec import ModelSpec
from minivllm.core.engine_core import EngineCore
from minivllm.core.startup import build_core
from minivllm.messages.request import EngineRequest
from minivllm.messages.sampling_params import SamplingParams

MAX_STEPS = 40
CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (128, 512, 2048, 8000)


def fill_cache(core: EngineCore) -> None:
    """Untouched memory would be one page of zeros, which costs nothing to read."""
    for layer in core.executor._live_worker()._pool.layers:  # type: ignore[attr-defined]
        layer.fill_(0.01)


def enter(core: EngineCore, ids: list[str], context: int, vocab_size: int) -> None:
    """Requests with one token more than the `context` that the prefix cache has of each, in blocks of its own."""
    cache = core.scheduler.kv_cache
    params = SamplingParams(temperature=0.0, max_tokens=MAX_STEPS + 4, ignore_eos=True)
    requests = []
    for number, request_id in enumerate(ids):
        prompt = [number % vocab_size, *(i * 31 % vocab_size for i in range(context))]
        blocks = cache.open()
        if cache.allocate(blocks, context) is None:
            raise RuntimeError("the cache holds less than was counted")
        cache.commit(blocks, prompt, context)
        cache.free(blocks)
        requests.append(EngineRequest(request_id, prompt, params, [], [], arrival_time=float(number)))
    core.add(requests)


def tokens_per_second(core: EngineCore, clients: int, context: int, vocab_size: int, seconds: float) -> float:
    core.call("reset_prefix_cache", [])
    ids = [f"r{i}" for i in range(clients)]
    enter(core, ids, context, vocab_size)
    for _ in range(3):
        core.step()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < MAX_STEPS):
        begin = time.perf_counter()
        outputs = core.step()
        times.append(time.perf_counter() - begin)
        assert outputs is not None and sum(len(o.token_ids) for o in outputs.outputs) == clients, "not every request decoded"
    core.abort(ids)
    while core.has_work():
        core.step()
    return clients / statistics.median(times)


class Limit:
    """What a decode step must read and compute."""

    def __init__(self, config: EngineConfig):
        spec: ModelSpec = config.spec
        heads = spec.num_heads * spec.head_dim
        kv_heads = spec.num_kv_heads * spec.head_dim
        layer = spec.hidden_size * (2 * heads + 2 * kv_heads + 3 * spec.intermediate_size)
        weights = spec.num_layers * layer + spec.hidden_size * spec.vocab_size
        self.weight_bytes = weights * (4 if config.model.dtype == "float32" else 2)
        self.kv_bytes = 2 * spec.num_layers * kv_heads * (4 if config.cache.kv_cache_dtype == "float32" else 2)  # of a token
        self.flops, self.flops_a_key = 2 * weights, 4 * spec.num_layers * heads  # of a token

    def __call__(self, clients: int, context: int, bandwidth: float, peak: float) -> float:
        """Tokens a second."""
        read = (self.weight_bytes + clients * context * self.kv_bytes) / bandwidth
        return clients / max(read, clients * (self.flops + context * self.flops_a_key) / peak)


def draw(path: Path, points: list[dict[str, float]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for number, context in enumerate(sorted({point["context"] for point in points})):
        line = [point for point in points if point["context"] == context]
        clients = [point["clients"] for point in line]
        axes.plot(clients, [p["tokens_per_second"] for p in line], "o-", color=f"C{number}", label=f"context {context:g}")
        axes.plot(clients, [p["limit"] for p in line], "--", color=f"C{number}", alpha=0.6)
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="output tokens a second (dashed: the machine's limit)")
    axes.set_xticks(ticks := sorted({point["clients"] for point in points}), [f"{tick:g}" for tick in ticks])
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    ap.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS, help="multiples of the block size")
    ap.add_argument("--kv-gib", type=float, default=8)
    ap.add_argument("--seconds", type=float, default=1.0, help="of each point")
    ap.add_argument("--plot", type=Path, metavar="FILE.png", help="draw it (needs matplotlib)")
    ap.add_argument("--json", type=Path, metavar="FILE")
    args = ap.parse_args()
    seqs = max(args.clients)
    config = EngineArgs(args.model, kv_cache_memory_bytes=int(args.kv_gib * 2**30), max_num_seqs=seqs).resolve()
    core, ready = build_core(config)
    fill_cache(core)
    limit, points = Limit(config), []
    print(f"{'clients':>8}{'context':>9}{'tok/s':>10}{'limit':>10}{'share':>8}{'GB/s':>8}{'GFLOP/s':>9}")
    for context in args.contexts:
        bandwidth, peak = probe()
        row = []
        for clients in args.clients:
            blocks = clients * -(-(context + MAX_STEPS + 8) // ready.block_size)
            if blocks < 0.98 * ready.num_blocks and context + MAX_STEPS + 8 <= ready.max_model_len:
                row.append((clients, tokens_per_second(core, clients, context, config.spec.vocab_size, args.seconds)))
        bandwidth, peak = (max(pair) for pair in zip((bandwidth, peak), probe(), strict=True))
        for clients, rate in row:
            best = limit(clients, context, bandwidth, peak)
            points.append({"clients": clients, "context": context, "tokens_per_second": rate, "limit": best})
            print(f"{clients:8}{context:9}{rate:10.1f}{best:10.1f}{rate / best:8.0%}{bandwidth / 1e9:8.0f}{peak / 1e9:9.0f}")
    core.shutdown()
    if args.json:
        args.json.write_text(json.dumps(points, indent=1))
    if args.plot:
        draw(args.plot, points)


if __name__ == "__main__":
    main()
