"""How many tokens a second go out as events, by one API process and by several? With a model that costs next to nothing.

    python benchmarks/api_processes.py MODEL [--counts 1 2] [--streams 64] [--tokens 200] [--rounds 3] [-- --cpu-threads 1 …]

The servers are up together and take turns. Beside the rate: processor time of cores and API processes, microseconds a token.
"""

import argparse
import asyncio
import contextlib
import statistics
import time

import psutil
import uvloop
from served import parse_with_flags, read_stream, served


def core_and_api_seconds(root: int) -> tuple[float, float]:
    """Processor time so far."""
    seconds = [0.0, 0.0]
    for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
        times = process.cpu_times()
        seconds["minivllm.core.process" not in process.cmdline()] += times.user + times.system
    return seconds[0], seconds[1]


def round_of(pid: int, port: int, num_streams: int, num_tokens: int) -> tuple[float, float, float]:
    """Tokens a second, microseconds of the cores and of the API processes for each."""

    async def all_streams() -> None:
        body = {"prompt": "Count:", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
        counts = await asyncio.gather(*(read_stream(port, "/v1/completions", body) for _ in range(num_streams)))
        assert all(counts), counts

    before, began = core_and_api_seconds(pid), time.perf_counter()
    uvloop.run(all_streams())
    seconds, after = time.perf_counter() - began, core_and_api_seconds(pid)
    total = num_streams * num_tokens
    return total / seconds, *(1e6 * (new - old) / total for new, old in zip(after, before, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    args, flags = parse_with_flags(parser)
    with contextlib.ExitStack() as stack:
        servers = {}
        for count in args.counts:
            process, port, _ = stack.enter_context(served(args.model, "--api-server-count", str(count), *flags))
            servers[count] = process.pid, port
            round_of(process.pid, port, args.streams, args.tokens)  # warm up
        found: dict[int, list[tuple[float, float, float]]] = {count: [] for count in servers}
        for _ in range(args.rounds):
            for count, (pid, port) in servers.items():
                found[count].append(round_of(pid, port, args.streams, args.tokens))
    for count, rounds in found.items():
        rate, core, api = (statistics.median(column) for column in zip(*rounds, strict=True))
        shown = " ".join(f"{each[0]:,.0f}" for each in rounds)
        print(
            f"{count} API: {rate:,.0f} tokens/s ({shown}); a token takes {core:.0f} us of cores, {api:.0f} us of API processes"
        )


if __name__ == "__main__":
    main()
