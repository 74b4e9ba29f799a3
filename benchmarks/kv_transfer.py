"""What does it bring that another engine computed the prompt? Bytes a second between two engines, and time to the first token.

    python benchmarks/kv_transfer.py MODEL [--connector TcpConnector] [--length 1024] [--rounds 5]

A producer and a consumer on this machine; the producer rests while the consumer answers. What a hand-over takes is what such
an answer takes longer than one to the same prompt again, which then is in the consumer's prefix cache.
"""

import argparse
import json
import random
import statistics
import time

from served import free_port, post, served

from minivllm import EngineArgs
from minivllm.engine.sync_engine import make_plan

HERE, THERE, TAKEN, CACHED = "computed here", "computed there, and offered", "handed over", "cached here"


def seconds_of(port: int, body: dict) -> tuple[float, dict]:
    began = time.perf_counter()
    reply = post(port, "/v1/completions", {"max_tokens": 1, "temperature": 0, **body})
    return time.perf_counter() - began, reply


def measure(here: int, there: int, length: int, times: dict[str, list[float]]) -> None:
    def prompt() -> list[int]:
        return [random.randrange(100, 10_000) for _ in range(length)]

    times[HERE].append(seconds_of(here, {"prompt": prompt()})[0])
    ids = prompt()
    seconds, offered = seconds_of(there, {"prompt": ids, "kv_transfer_params": {"do_remote_decode": True}})
    times[THERE].append(seconds)
    seconds, reply = seconds_of(here, {"prompt": ids, "kv_transfer_params": offered["kv_transfer_params"]})
    times[TAKEN].append(seconds)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] > length - 300, "it was not handed over"
    times[CACHED].append(seconds_of(here, {"prompt": ids})[0])


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--connector", default="SharedMemoryConnector", choices=("SharedMemoryConnector", "TcpConnector"))
    ap.add_argument("--length", type=int, default=1024)
    ap.add_argument("--rounds", type=int, default=5)
    args = ap.parse_args()
    num_bytes = make_plan(EngineArgs(args.model)).kv_bytes_per_token * args.length
    port = free_port()
    common = {"kv_connector": args.connector, "kv_port": port, "kv_connector_extra_config": {"peers": [f"127.0.0.1:{port}"]}}
    roles = [json.dumps({**common, "kv_role": role}) for role in ("kv_consumer", "kv_producer")]
    times: dict[str, list[float]] = {name: [] for name in (HERE, THERE, TAKEN, CACHED)}
    with (
        served(args.model, "--kv-transfer-config", roles[0]) as (_, here, _),
        served(args.model, "--kv-transfer-config", roles[1]) as (_, there, _),
    ):
        for _ in range(args.rounds):
            measure(here, there, args.length, times)
    for name, seconds in times.items():
        print(f"{name:28} {1e3 * statistics.median(seconds):8.1f} ms")
    extra = statistics.median(a - b for a, b in zip(times[TAKEN], times[CACHED], strict=True))
    print(f"{num_bytes / 1e6:.1f} MB in {1e3 * extra:.1f} ms: {num_bytes / 1e9 / extra:.2f} GB/s")


if __name__ == "__main__":
    main()
