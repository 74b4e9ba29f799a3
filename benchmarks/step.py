"""Where the time of one decode step goes: its phases, and the kernels of the recorded program by kind.

python benchmarks/step.py <model folder> [--batches 1 32] [--context 256] [--kv-cache-dtype int8]
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from minivllm.config.engine_args import EngineArgs
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, StepPlan
from minivllm.worker.graph_runner import tensors_of
from minivllm.worker.worker import Worker

BLOCK = 16


@contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    plain = getattr(owner, name)
    setattr(owner, name, wrap(plain))
    try:
        yield
    finally:
        setattr(owner, name, plain)


def timed(into: list[float]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(plain: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            begin = time.perf_counter()
            result = plain(*args)
            into.append(time.perf_counter() - begin)
            return result

        return run

    return wrap


def read_bandwidth() -> float:
    """Bytes a second that all threads read from memory; the best of a few."""
    memory = torch.ones(1 << 26)
    found = []
    for _ in range(8):
        begin = time.perf_counter()
        memory.sum()
        found.append(memory.nbytes / (time.perf_counter() - begin))
    return max(found)


def fill(worker: Worker, batch: int, context: int, steps: int) -> float:
    """A batch of running requests; the best time of a prefill among them."""
    blocks, times = -(-(context + 2 * steps) // BLOCK), []
    params = SamplingParams(temperature=0.0)
    for slot in range(batch):
        tokens = ((np.arange(context) * 7 + slot * 13) % 1000 + 10).tolist()
        new = NewSlot(slot, f"r{slot}", tokens, context, 0, [slot * blocks + i for i in range(blocks)], params, [], [])
        begin = time.perf_counter()
        worker.execute(StepPlan(-1, [], [new], [ScheduledSlot(slot, context, 0, [], True)]))
        times.append(time.perf_counter() - begin)
    return min(times)


def profile(worker: Worker, batch: int, context: int, steps: int) -> None:
    prefill = fill(worker, batch, context, steps)
    runner, whole, at = worker._runner, [], context
    assert runner is not None
    owners = {"build": (runner._builder, "build"), "forward": (runner._graphs, "run"),
              "head": (runner._model, "compute_logits"), "sample": (runner._sampler, "sample")}  # fmt: skip
    phases: dict[str, list[float]] = {name: [] for name in owners}

    def step() -> None:
        nonlocal at
        worker.execute(StepPlan(-1, [], [], [ScheduledSlot(slot, 1, at, [], True) for slot in range(batch)]))
        at += 1

    with replaced(*owners["build"], timed(phases["build"])), replaced(*owners["forward"], timed(phases["forward"])), \
         replaced(*owners["head"], timed(phases["head"])), replaced(*owners["sample"], timed(phases["sample"])):  # fmt: skip
        for _ in range(steps):
            timed(whole)(step)()
    median = {name: statistics.median(times) * 1e3 for name, times in phases.items()}
    total, best = statistics.median(whole) * 1e3, min(whole) * 1e3
    print(f"batch {batch}, {context} tokens each: {total:.2f} ms (best {best:.2f}), prefill of one {prefill * 1e3:.1f} ms")
    print("  " + "  ".join(f"{name} {ms:.2f}" for name, ms in median.items()) + f"  rest {total - sum(median.values()):.2f}")
    if (program := runner._graphs._program) is not None:
        kernels(runner._graphs, program, step, steps)
    worker.execute(StepPlan(-1, list(range(batch)), [], []))


def kernels(graphs: Any, program: Any, step: Callable[[], None], steps: int) -> None:
    times: list[list[float]] = []

    def wrap(plain: Callable[..., Any]) -> Callable[..., Any]:
        def run(inputs: Any, kv_caches: Any) -> Any:
            times.append(program.run_timed(tensors_of(inputs), (len(inputs.input_ids), len(inputs.attention.context_lens))))
            return plain(inputs, kv_caches)

        return run

    with replaced(graphs, "run", wrap):
        for _ in range(steps):
            step()
    median = np.median(np.array(times), axis=0) * 1e3
    for name in dict.fromkeys(program.ops):
        own = [ms for op, ms in zip(program.ops, median, strict=True) if op == name]
        print(f"    {name:12} {len(own):4} x {statistics.mean(own) * 1e3:7.1f} us = {sum(own):6.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--kv-cache-dtype", default="auto")
    options = parser.parse_args()
    blocks = max(options.batches) * -(-(options.context + 2 * options.steps) // BLOCK)
    threads = {} if options.threads is None else {"cpu_threads": options.threads}
    config = EngineArgs(
        model=options.model, dtype="bfloat16", block_size=BLOCK, enforce_eager=options.enforce_eager,
        kv_cache_dtype=options.kv_cache_dtype, **threads,
    ).resolve()  # fmt: skip
    worker = Worker(config)
    worker.init_device()
    worker.load_model()
    worker.allocate_kv(blocks)
    worker.warm_up()
    print(f"{config.device.cpu_threads} threads read {read_bandwidth() / 1e9:.1f} GB/s")
    for batch in options.batches:
        profile(worker, batch, options.context, options.steps)
    print(f"at the end {read_bandwidth() / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
