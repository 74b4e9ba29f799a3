"""How does a server do under the usual loads? Starts it, puts each on it by the client of `minivllm bench`, prints a table.

    python benchmarks/serving.py MODEL [--workloads c1 c32] [--rounds 3] [--variant "--max-num-batched-tokens 2048"]

Each --variant is a further server with these flags, up at the same time and measured in turn, so that a machine that changes
speed by itself does so for all. Figures are medians over the rounds; the gap is the longest between two chunks of a stream.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path

from served import memory_mib, served

from minivllm.entrypoints.cli.bench.datasets import usable_ids
from minivllm.entrypoints.cli.bench.figures import summarize
from minivllm.entrypoints.cli.bench.http_client import HttpClient
from minivllm.entrypoints.cli.bench.load import run_load
from minivllm.text.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Workload:
    clients: int
    requests: int
    input_len: int
    output_len: int
    prefix_len: int = 0  # tokens that all prompts begin with, in addition
    late: tuple[int, int, float] = (0, 0, 0.0)  # further requests: how many, tokens of their prompts, seconds between them


WORKLOADS = {
    "c1": Workload(1, 4, 256, 128),
    "c8": Workload(8, 16, 256, 128),
    "c32": Workload(32, 64, 256, 128),
    "prefill": Workload(1, 4, 2000, 2),
    "prefix": Workload(4, 16, 32, 32, prefix_len=1024),
    "mixed": Workload(12, 8, 64, 192, late=(4, 2000, 0.5)),  # long prompts come while others stream
}
COLUMNS = {
    "out tok/s": "output_throughput",
    "in+out tok/s": "total_token_throughput",
    "TTFT ms": "median_ttft_ms",
    "p99": "p99_ttft_ms",
    "TPOT ms": "median_tpot_ms",
    "gap ms": "max_itl_ms",
}


def requests(work: Workload, ids: list[int], seed: int) -> tuple[list[bytes], list[float]]:
    """Bodies and the seconds at which they are due."""
    rng = random.Random(seed)
    prefix = rng.choices(ids, k=work.prefix_len)
    prompts = [(prefix + rng.choices(ids, k=work.input_len), work.output_len) for _ in range(work.requests)]
    num_late, late_len, gap = work.late
    prompts += [(rng.choices(ids, k=late_len), 8) for _ in range(num_late)]
    common = {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    bodies = [json.dumps({"prompt": prompt, "max_tokens": length, **common}).encode() for prompt, length in prompts]
    return bodies, [0.0] * work.requests + [gap * (i + 1) for i in range(num_late)]


async def measure(port: int, work: Workload, ids: list[int], seed: int) -> dict[str, float]:
    client = HttpClient(f"http://127.0.0.1:{port}", {})
    bodies, due = requests(work, ids, seed)
    try:
        outcomes, duration = await run_load(client, "/v1/completions", bodies, due, work.clients, progress=False)
    finally:
        client.close()
    figures = summarize(outcomes, duration, [99], {})
    if figures["failures"]:
        raise SystemExit(f"requests failed: {figures['failures']}")
    return {name: figures.get(key, float("nan")) for name, key in COLUMNS.items()}


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", type=Path)
    ap.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    ap.add_argument("--rounds", type=int, default=1)
    ap.add_argument("--flags", default="", help="of every server, as in --flags=--enforce-eager")
    ap.add_argument("--variant", action="append", default=[], metavar="FLAGS", help="a further server with these flags")
    ap.add_argument("--json", type=Path, help="write every figure of every round here")
    args = ap.parse_args()
    ids = usable_ids(load_tokenizer(args.model))
    common = (str(args.model), "--max-model-len", "4096", "--kv-cache-memory-bytes", "2GiB", *shlex.split(args.flags))
    rounds: dict[str, list[dict[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        servers = {flags: stack.enter_context(served(*common, *shlex.split(flags))) for flags in ["", *args.variant]}
        for number in range(args.rounds):
            for name in args.workloads:
                for flags, (_, port, _) in servers.items():
                    figures = asyncio.run(measure(port, WORKLOADS[name], ids, 100 * number + len(name)))
                    rounds.setdefault(f"{name} {flags}".strip(), []).append(figures)
        memory = {flags: memory_mib(process.pid) for flags, (process, _, _) in servers.items()}
    width = max(map(len, rounds))
    print(f"{'':{width}}" + "".join(f"{name:>14}" for name in COLUMNS))
    for name, found in rounds.items():
        print(f"{name:{width}}" + "".join(f"{statistics.median(f[c] for f in found):14.1f}" for c in COLUMNS))
    for flags, (_, _, seconds) in servers.items():
        print(f"{flags or 'server'}: first answer after {seconds:.2f} s, {memory[flags]:.0f} MiB at the end")
    if args.json:
        args.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
