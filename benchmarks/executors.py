"""What does a step cost beyond the worker's own time? The same decoding steps by each executor.

python benchmarks/executors.py MODEL [--streams 1] [--steps 200] [--backends uni mp tp2 pp2 ray]

`outside` is what a step takes from `execute` to its result less what the worker says that it took: encoding, waking, copying.
"""

import argparse
import statistics
import time
from typing import Any

from minivllm.config.engine_args import EngineArgs
from minivllm.core.startup import build_core
from minivllm.messages.request import EngineRequest
from minivllm.messages.sampling_params import SamplingParams

BACKENDS: dict[str, dict[str, Any]] = {
    "uni": {},
    "mp": {"distributed_executor_backend": "mp"},
    "tp2": {"tensor_parallel_size": 2},
    "pp2": {"pipeline_parallel_size": 2},
    "ray": {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"},
}
PROMPT_TOKENS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=1, help="requests that decode at a time")
    parser.add_argument("--steps", type=int, default=200, help="decoding steps to measure")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=["uni", "mp"])
    args = parser.parse_args()
    print(f"{'executor':10} {'step':>9} {'worker':>9} {'outside':>9} {'p90':>9}   ms, median of {args.steps} steps")
    for name in args.backends:
        walls, workers = measure(args.model, args.streams, args.steps, cpu_threads=args.threads, **BACKENDS[name])
        outside = sorted(wall - worker for wall, worker in zip(walls, workers, strict=True))
        figures = (
            statistics.median(walls),
            statistics.median(workers),
            statistics.median(outside),
            outside[len(outside) * 9 // 10],
        )
        print(f"{name:10} " + " ".join(f"{1e3 * figure:9.3f}" for figure in figures), flush=True)


def measure(model: str, num_streams: int, num_steps: int, **options: Any) -> tuple[list[float], list[float]]:
    limits = {"num_gpu_blocks_override": num_streams * (num_steps + 64) // 16 + 64, "max_num_batched_tokens": 2048}
    core, _ = build_core(EngineArgs(model=model, dtype="bfloat16", seed=0, **limits, **options).resolve())
    try:
        core.add([request(i, num_steps + 8) for i in range(num_streams)])
        execute, walls, workers = core.executor.execute, [], []
        while core.has_work():
            plan = core.scheduler.plan()
            if plan is None:
                break
            begin = time.perf_counter()
            result = execute(plan).result()
            walls.append(time.perf_counter() - begin)
            workers.append(result.seconds or 0.0)
            core.scheduler.apply(plan, result)
    finally:
        core.shutdown()
    return walls[4:num_steps], workers[4:num_steps]


def request(index: int, num_tokens: int) -> EngineRequest:
    return EngineRequest(
        request_id=str(index),
        prompt_token_ids=[(index * 7919 + i * 31) % 150 for i in range(PROMPT_TOKENS)],
        sampling_params=SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0.0),
        eos_token_ids=[2],
        bad_words_token_ids=[],
        arrival_time=float(index),
    )


if __name__ == "__main__":
    main()
