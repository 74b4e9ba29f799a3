"""How long from the command to the first answered request, and how much memory beyond weights and KV cache?

    python benchmarks/startup.py MODEL [--runs 5]

The KV cache is 1 GiB and filled before memory is read, so that lazily touched pages count.
"""

import argparse
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from served import memory_mib, post, served

KV_MIB = 1024


def fill_cache(port: int, num_tokens: int, prompt_len: int) -> None:
    """Send different prompts until every KV block has been written."""

    def one(number: int) -> None:
        prompt = [1000 + (number * 7919 + i * 31) % 40000 for i in range(prompt_len)]
        post(port, "/v1/completions", {"prompt": prompt, "max_tokens": 1})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(num_tokens // prompt_len + 2)))


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", type=Path)
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("--kv-token-bytes", type=int, default=23040, help="KV bytes of one token (SmolLM2-135M in bfloat16)")
    args = ap.parse_args()
    weights = sum(f.stat().st_size for f in args.model.glob("*.safetensors")) / 2**20
    flags = (str(args.model), "--kv-cache-memory-bytes", f"{KV_MIB}Mi")
    seconds = []
    for _ in range(args.runs):
        with served(*flags) as (process, _, elapsed):
            seconds.append(elapsed)
            idle = memory_mib(process.pid)
    with served(*flags) as (process, port, _):
        fill_cache(port, KV_MIB * 2**20 // args.kv_token_bytes, 2000)
        full = memory_mib(process.pid)
    print(f"command to first answer: median {statistics.median(seconds):.2f} s, of {', '.join(f'{s:.2f}' for s in seconds)}")
    print(f"memory after the first answer: {idle:.0f} MiB; weights {weights:.0f} MiB")
    print(f"memory with the KV cache full: {full:.0f} MiB = weights + {KV_MIB} MiB + {full - weights - KV_MIB:.0f} MiB")


if __name__ == "__main__":
    main()
