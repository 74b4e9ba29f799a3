"""What does scheduling cost? Time of one plan() and one apply() with many running requests, without any model.

python benchmarks/scheduler.py [--running 256] [--steps 300]; the target is plan() below 1 ms at 256 running requests.
"""

import argparse
import statistics
import time

from minivllm.config.sections.cache import CacheConfig
from minivllm.config.sections.scheduler import SchedulerConfig
from minivllm.core.scheduler.scheduler import Scheduler
from minivllm.messages.request import EngineRequest
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import SlotResult, StepPlan, StepResult

PROMPT_TOKENS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, default=256, help="requests that decode at a time")
    parser.add_argument("--steps", type=int, default=300, help="decode steps to measure")
    args = parser.parse_args()
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=args.running, max_num_batched_tokens=8192),
        CacheConfig(),
        num_blocks=args.running * (PROMPT_TOKENS + args.steps + 64) // 16,
        max_model_len=8192,
    )
    for i in range(args.running):
        scheduler.add(request(i, args.steps))
    for name, times in measure(scheduler, args.running).items():
        times = sorted(times)
        p99 = times[int(len(times) * 0.99)]
        print(f"{name:24} median {statistics.median(times):6.3f} ms   p99 {p99:6.3f} ms   ({len(times)} steps)")


def request(index: int, num_steps: int) -> EngineRequest:
    return EngineRequest(
        request_id=f"cmpl-{index}",
        prompt_token_ids=[(index * 7919 + i * 31) % 49152 for i in range(PROMPT_TOKENS)],
        sampling_params=SamplingParams(max_tokens=num_steps + 1),
        eos_token_ids=[2],
        bad_words_token_ids=[],
        arrival_time=float(index),
    )


def measure(scheduler: Scheduler, num_running: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"plan() prefill": [], "plan() decode": [], "apply() decode": []}
    while scheduler.has_work():
        start = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter()
        assert plan is not None
        result = answer(plan)
        before = time.perf_counter()
        scheduler.apply(plan, result)
        applied = time.perf_counter()
        if plan.new:
            times["plan() prefill"].append(1e3 * (planned - start))
        elif len(plan.scheduled) == num_running:
            times["plan() decode"].append(1e3 * (planned - start))
            times["apply() decode"].append(1e3 * (applied - before))
    return times


def answer(plan: StepPlan) -> StepResult:
    return StepResult(plan.step_id, [SlotResult(s.slot, [77] if s.sample else []) for s in plan.scheduled])


if __name__ == "__main__":
    main()
