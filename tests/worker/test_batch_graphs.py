"""Graphs of decoding steps: padding, buffers and choice of size, on a device that repeats a function in place of a graph."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from minivllm.config.engine_args import EngineArgs
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, StepPlan
from minivllm.worker.batch_graphs import batch_sizes
from minivllm.worker.devices import DEVICES
from minivllm.worker.devices.base import Captured
from minivllm.worker.devices.cpu import CpuDevice
from minivllm.worker.staging import _BUFFERS, Staging
from minivllm.worker.worker import Worker

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


class Repeating(CpuDevice):
    """Like a graph, it reads the same inputs and writes the same result at each replay; and it copies inputs as a GPU does."""

    captures = True
    warm_up_lengths = (1, 5)

    def __init__(self, config, *place):
        super().__init__(config, *place)
        self.replays: list[int] = []
        self.captured: list[int] = []
        staging = Staging(lambda size: torch.full((size,), 255, dtype=torch.uint8), lambda host: (host.clone(), lambda: None))
        self.send = staging.send

    def capture(self, function: Callable[[], Tensor]) -> Captured:
        result = function()
        self.captured.append(len(result))

        def replay() -> None:
            self.replays.append(len(result))
            result.copy_(function())

        return Captured(replay, result)

    def peak_bytes(self, run: Callable[[], None]) -> int:
        run()
        return 0


def make_worker(folder: Path, **options) -> Worker:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    limits = {"max_num_seqs": 11, "max_num_batched_tokens": 64}
    args = EngineArgs(
        model=str(folder), device="cpu", load_format="dummy", dtype="float32", seed=0, cpu_threads=1, **limits, **options
    )
    worker = Worker(args.resolve())
    worker.init_device()
    worker.load_model()
    worker.available_kv_bytes()
    worker.allocate_kv(60)
    return worker


def new(slot: int, length: int) -> NewSlot:
    tokens, blocks = [(7 * i + 31 * slot) % 300 for i in range(length)], [5 * slot + i for i in range(5)]
    return NewSlot(slot, f"r{slot}", tokens, length, 0, blocks, SamplingParams(temperature=0.0), [], [])


def tokens_of(worker: Worker) -> list[list[int]]:
    """Of prompts, decoding steps of all sizes, and a mixed step."""
    lengths = [3 + 2 * slot for slot in range(11)]
    done = []

    def step(freed: list[int], arriving: list[int], decoding: list[int]) -> None:
        plan = StepPlan(0, freed, [new(slot, lengths[slot]) for slot in arriving], [])
        plan.scheduled.extend(ScheduledSlot(slot, lengths[slot], 0, [], True) for slot in arriving)
        plan.scheduled.extend(ScheduledSlot(slot, 1, lengths[slot], [], True) for slot in decoding)
        done.append([token for result in worker.execute(plan).results for token in result.token_ids])
        for slot in decoding:
            lengths[slot] += 1

    known = 0
    for count in (1, 2, 3, 5, 11):
        step([], list(range(known, count)), [])
        step([], [], list(range(count)))
        step([], [], list(range(count)))
        known = count
    step([10], [10], list(range(10)))
    return done


def test_the_same_tokens_with_and_without_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIVLLM_NO_EXT", "1")
    eager = make_worker(tmp_path, enforce_eager=True)
    expected = tokens_of(eager)
    monkeypatch.setitem(DEVICES, "cpu", Repeating)
    worker = make_worker(tmp_path)
    device = worker._device
    assert device.captured == [11, 8, 4, 2, 1]
    assert tokens_of(worker) == expected
    assert device.replays == [1, 1, 2, 2, 4, 4, 8, 8, 11, 11]  # and none for prompts and mixed steps
    worker.warm_up()
    assert torch.get_num_threads() == 1


def test_warm_up_calls_what_sampling_may_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first request with a penalty lets all wait for compilers."""
    monkeypatch.setenv("MINIVLLM_NO_EXT", "1")
    monkeypatch.setitem(DEVICES, "cpu", Repeating)
    worker = make_worker(tmp_path)
    called: set[tuple[str, bool]] = set()

    class Noting:
        def __init__(self, op: ModuleType):
            self.op = op

        def __getattr__(self, name: str) -> Callable[..., object]:
            def call(logits: Tensor, rows: Tensor | None, *rest: Tensor) -> object:
                called.add((name, rows is not None))
                return getattr(self.op, name)(logits, rows, *rest)

            return call

    worker._runner._sampler._op = Noting(worker._runner._sampler._op)
    worker.warm_up()
    assert called == {("choose", False), ("choose", True), ("penalize", True), ("logprobs", True)}
    assert worker._runner._slots.requests == {}


def test_sizes_end_with_the_most_sequences() -> None:
    assert batch_sizes(1) == [1] and batch_sizes(2) == [1, 2] and batch_sizes(9) == [1, 2, 4, 8, 9]
    assert batch_sizes(300)[-4:] == [256, 272, 288, 300]


def test_staging_waits_before_it_writes_over_what_is_being_read() -> None:
    waits: list[int] = []
    made: list[Tensor] = []

    def allocate(size: int) -> Tensor:
        made.append(torch.zeros(size, dtype=torch.uint8))
        return made[-1]

    def send(host: Tensor) -> tuple[Tensor, Callable[[], None]]:
        number = len(sent)
        return host.clone(), lambda: waits.append(number)

    sent: list[list[Tensor]] = []
    staging = Staging(allocate, send)
    for number in range(_BUFFERS + 2):
        arrays = [
            torch.arange(n, dtype=dtype).numpy() + number for n, dtype in ((3, torch.int64), (0, torch.int32), (6, torch.int32))
        ]
        sent.append(staging.send([arrays[0], arrays[1], arrays[2].reshape(2, 3)]))
    assert waits == [0, 1] and len(made) == _BUFFERS
    for number, (ids, empty, table) in enumerate(sent):
        assert ids.tolist() == [number, number + 1, number + 2] and empty.shape == (0,)
        assert table.tolist() == [[number, number + 1, number + 2], [number + 3, number + 4, number + 5]]
        assert (ids.dtype, table.dtype) == (torch.int64, torch.int32)
