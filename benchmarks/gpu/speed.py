"""How fast is this GPU with these kernels, beside what it can do at all?

    PYTHONPATH=. python benchmarks/gpu/speed.py [--only attention] [--models llama-8b qwen3-30b-a3b] [--device cuda]
    PYTHONPATH=. python benchmarks/gpu/speed.py --sweep [--only decode]

Needs torch and triton. First the measured limits: bytes a copy reads and writes, and bf16 matrix products. Then each kernel
as a share of the limit that holds for it, and models with random weights, end to end on hand-made plans. --sweep tries other
tiles instead and prints the best, as lines of kernels/triton/tiles.py. Each case may raise, crash or hang without harm to the
others. With $OUT set, each case is a line of $OUT/speed.jsonl. `--device cpu`, with TRITON_INTERPRET=1, tries the program
itself on small sizes; its figures mean nothing.
"""

import argparse
import functools
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import bare
import isolated
import torch
from torch import Tensor
from triton.testing import do_bench

bare.provide()

import models  # noqa: E402
from cases import Case, Sweep, kernels, limits, sweep_makers, sweep_name, sweeps  # noqa: E402
from models import Scale  # noqa: E402

from minivllm.model.layers.layer import Layer  # noqa: E402
from minivllm.worker.worker import Worker  # noqa: E402

_FLUSHED = 1 << 28  # bytes, more than any cache holds
_GRAPH_SECONDS = 0.02  # of calls in a graph


def seconds_of(call: Callable[[], object], scale: Scale) -> float:
    """Of the device alone, with nothing of the inputs in its cache."""
    if scale.small:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    torch.cuda.synchronize()
    call()
    once = do_bench(call, warmup=1, rep=5) / 1e3
    flushed, count = torch.empty(_FLUSHED, dtype=torch.int8), max(1, min(40, int(_GRAPH_SECONDS / once)))

    def both() -> None:
        flushed.zero_()
        call()

    try:
        with_call, without = recorded(both, count), recorded(flushed.zero_, count)
    except RuntimeError as error:  # it cannot be a graph: then with what the host adds
        print(f"not captured: {error}", flush=True)
        return do_bench(call) / 1e3
    times = [(replay_seconds(with_call) - replay_seconds(without)) / count for _ in range(5)]
    return max(1e-7, statistics.median(times))


def recorded(call: Callable[[], object], count: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    graph.replay()
    return graph


def replay_seconds(graph: torch.cuda.CUDAGraph) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    graph.replay()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3


# ---- models

MODELS = {"llama-8b": models.LLAMA_8B, "qwen3-30b-a3b": models.QWEN3_30B_A3B}


@dataclass(slots=True)
class Load:
    batches: list[int]
    prompt: int = 1024
    answer: int = 128
    chunk: int = 8192  # tokens of a step

    @property
    def per_seq(self) -> int:
        """Blocks."""
        return (self.prompt + self.answer) // 16 + 1


class Loaded:
    """The model that was asked for last; the one before must go first, or there is no room."""

    def __init__(self) -> None:
        self._name, self._worker = "", None

    def worker(self, name: str, load: Load, scale: Scale) -> Worker:
        if self._worker is None or self._name != name:
            self._worker = None
            gc.collect()
            if not scale.small:
                torch.cuda.empty_cache()
            config = MODELS[name] | (models.TINY if scale.small else {})
            options = {"dtype": "bfloat16", "max_model_len": 2048, "max_num_seqs": max(load.batches)}
            options["max_num_batched_tokens"] = load.chunk
            with TemporaryDirectory() as folder, torch.device("cpu"):
                blocks = load.per_seq * max(load.batches)
                self._worker = models.make_worker(Path(folder), blocks, config, device=scale.device, **options)
            self._name = name
        return self._worker


LOADED = Loaded()


def run_model(name: str, count: int, load: Load, scale: Scale) -> isolated.Reply:
    worker = LOADED.worker(name, load, scale)
    batch = models.Batch(worker, 16, load.per_seq)
    prompts = [[(7 * i + 31 * s) % 1000 for i in range(load.prompt)] for s in range(count)]
    batch.prefill(prompts[:8], load.chunk)  # compiles what is to be compiled
    batch.decode()
    batch.free()
    began = time.monotonic()
    batch.prefill(prompts, load.chunk)
    prefill = time.monotonic() - began
    one_by_one = seconds_per_step(batch, load.answer // 4, overlapped=False)
    overlapped = seconds_per_step(batch, load.answer // 2, overlapped=True)
    weights = sum(read_of(layer, count) for _, layer in worker._runner._model.walk())  # type: ignore[union-attr]
    layers = worker._loaded_pool().layers
    read = weights + len(layers) * layers[0][:, 0].nbytes / 16 * sum(batch.lengths)
    reply = {"prompt_tokens_per_s": count * load.prompt / prefill, "step_s": overlapped, "alone_s": one_by_one, "read": read}
    if not scale.small:
        try:
            reply["device_s"] = on_device(batch)
        except Exception as error:  # no profiler here
            print(f"not profiled: {error}", flush=True)
    batch.free()
    return reply


def seconds_per_step(batch: models.Batch, steps: int, *, overlapped: bool) -> float:
    times = [time.monotonic()]
    for _ in batch.decode_many(max(2, steps), overlapped):
        times.append(time.monotonic())
    return statistics.median(end - begin for begin, end in itertools.pairwise(times[1:]))


def on_device(batch: models.Batch) -> float:
    """Seconds in which kernels run during a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            batch.decode()
        torch.cuda.synchronize()
    on_gpu = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(event.time_range.elapsed_us() for event in on_gpu) / 3 / 1e6


def read_of(layer: Layer, count: int) -> float:
    """Bytes of a layer's own weights that a step with so many tokens reads, as is to be expected: not all experts."""
    size = sum(value.nbytes for value in vars(layer).values() if isinstance(value, Tensor))
    return size * (1 - (1 - layer.share_read) ** count)


# ---- the two sides


def print_sweep(sweep: Sweep, replies: dict[str, isolated.Reply]) -> None:
    found: dict[tuple[int, ...] | None, float] = {}
    for value in (None, *sweep.values):
        times = [replies[sweep_name(sweep.key, value, number)].get("us") for number in range(len(sweep.cases))]
        if None not in times:
            found[value] = sum(times)
    now = f"{found.pop(None):.0f} us before" if None in found else "failed before"
    best = sorted(found, key=lambda value: found[value])[:3]
    if best:
        print(f"    {sweep.key}: {best[0]},  # {'; '.join(f'{value} {found[value]:.0f} us' for value in best)}; {now}")
    else:
        print(f"    # {sweep.key}: none of the tiles worked; {now}")


@functools.cache
def makers(scale: Scale) -> dict[str, Callable[[], Case]]:
    return dict([*limits(scale), *kernels(scale), *sweep_makers(scale)])


def run(scale: Scale, load: Load, name: str) -> isolated.Reply:
    """name: of a case; "prepare " before it to compile it only; or that of a model and a number of sequences."""
    model, _, count = name.rpartition(" ")
    if model in MODELS:
        return run_model(model, int(count), load, scale)
    with torch.device(scale.device):
        if name.startswith("prepare "):
            makers(scale)[name.removeprefix("prepare ")]().call()
            return {}
        case = makers(scale)[name]()
        return {"us": 1e6 * seconds_of(case.call, scale), "moved": case.moved, "flop": case.flop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases with this in their name; no models")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--processes", type=int, default=isolated.PROCESSES, help="that compile")
    parser.add_argument("--seconds", type=float, default=270, help="for all of it; what is not tried by then failed")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    scale = Scale(args.device)
    load = Load([2], 20, 8, 64) if scale.small else Load(args.batches)
    if args.serve is not None:
        models.interpret_if(scale.small)
        isolated.serve(args.serve, partial(run, scale, load))
        return
    Program(scale, time.monotonic() + args.seconds, args.processes).run(args.sweep, args.only, args.models, load.batches)


class Program:
    def __init__(self, scale: Scale, until: float, processes: int):
        self._scale = scale
        self._until = until
        self._processes = processes
        self._notes = isolated.Notes("speed.jsonl")

    def run(self, sweep: bool, only: str, chosen: list[str], batches: list[int]) -> None:
        kind = sweep_makers if sweep else kernels
        names = [name for name, _ in kind(self._scale) if only in name]
        top = [name for name, _ in limits(self._scale)]
        began = time.monotonic()
        if not self._scale.small:
            for _ in self._ask([f"prepare {name}" for name in names], self._processes):
                """Only the compiled kernels count, which are kept on disk."""
            print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
        if sweep:
            replies = dict(self._ask(names))
            for one in sweeps(self._scale):
                if sweep_name(one.key, None, 0) in replies:
                    print_sweep(one, replies)
            return
        measured = self._ask([*top, *names])
        copied, multiplied = (reply for _, reply in itertools.islice(measured, 2))
        bandwidth = copied["moved"] / copied["us"] if "us" in copied else float("inf")  # bytes a microsecond
        matrix = multiplied["flop"] / multiplied["us"] if "us" in multiplied else float("inf")
        device = "cpu" if self._scale.small else torch.cuda.get_device_name()
        print(f"{device}: copies {bandwidth / 1e6:.2f} TB/s read and written, bf16 products {matrix / 1e6:.0f} TFLOP/s\n")
        print("| Kernel | us | TB/s | TFLOP/s | Share of the limit |\n|---|---|---|---|---|")
        for name, reply in measured:
            print(f"| {name} | {kernel_row(reply, bandwidth, matrix)} |", flush=True)
        if not only and chosen:
            print("\n| Model, sequences | Prompt tokens/s | Decode tokens/s | Step ms | alone | on the device | Share |")
            print("|---|---|---|---|---|---|---|")
            for name, reply in self._ask([f"{model} {count}" for model in chosen for count in batches], seconds=200):
                print(f"| {name} | {model_row(name, reply, bandwidth)} |", flush=True)
        print(f"\n{time.monotonic() - began:.0f} s")

    def _ask(self, names: list[str], servers: int = 1, seconds: float = 60) -> Iterator[tuple[str, isolated.Reply]]:
        command = [sys.executable, *sys.argv]
        for name, reply in isolated.ask_all(command, names, servers=servers, seconds=seconds, until=self._until):
            self._notes.add(case=name, **reply)
            yield name, reply


def kernel_row(reply: isolated.Reply, bandwidth: float, matrix: float) -> str:
    if "us" not in reply:
        return f"failed: {reply['error'][-200:]} | | |"
    us, moved, flop = reply["us"], reply["moved"], reply["flop"]
    least = max(moved / bandwidth, flop / matrix)
    rates = f"{moved / us / 1e6:.2f}" if moved else "–", f"{flop / us / 1e6:.0f}" if flop else "–"
    return f"{us:.1f} | {' | '.join(rates)} | {least / us:.0%}"


def model_row(name: str, reply: isolated.Reply, bandwidth: float) -> str:
    if "step_s" not in reply:
        return f"failed: {reply['error'][-200:]} | | | | |"
    step, count = reply["step_s"], int(name.rpartition(" ")[2])
    device = f"{1e3 * reply['device_s']:.2f}" if "device_s" in reply else "–"
    share = reply["read"] / (1e6 * bandwidth) / step
    return (
        f"{reply['prompt_tokens_per_s']:.0f} | {count / step:.0f} | {1e3 * step:.2f} | {1e3 * reply['alone_s']:.2f} | {device} "
        f"| {share:.0%}"
    )


if __name__ == "__main__":
    main()
