"""How long ranks on one machine take to add what they have, by shared memory and by gloo.

python benchmarks/all_reduce.py [--ranks 2] [--kib 4 64 1024] [--gloo]
"""

import argparse
import multiprocessing
import statistics
import time
from uuid import uuid4

import torch

from minivllm.distributed.communicator import connect
from minivllm.distributed.groups import Layout

ROUNDS = 20_000


def measure(rank: int, size: int, name: str, kib: list[int], use_extension: bool) -> None:
    torch.set_num_threads(1)
    group = connect("cpu", name, Layout(size).place(rank), use_extension)
    for each in kib:
        x = torch.zeros(1, each * 512, dtype=torch.bfloat16)
        times: list[float] = []
        for _ in range(ROUNDS // each + ROUNDS // 10):
            begin = time.perf_counter()
            group.all_reduce(x)
            times.append((time.perf_counter() - begin) * 1e6)
        if rank == 0:
            times = sorted(times[len(times) // 10 :])  # after a warm-up
            median, high = statistics.median(times), times[len(times) * 99 // 100]
            print(f"{each:6} KiB of bfloat16: median {median:7.1f} us, 99 % below {high:7.1f} us")
    group.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kib", type=int, nargs="+", default=[1, 4, 64, 1024])
    parser.add_argument("--gloo", action="store_true", help="as without the extension")
    args = parser.parse_args()
    name, spawn = f"benchmark-{uuid4().hex}", multiprocessing.get_context("spawn")
    processes = [
        spawn.Process(target=measure, args=(rank, args.ranks, name, args.kib, not args.gloo)) for rank in range(args.ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
