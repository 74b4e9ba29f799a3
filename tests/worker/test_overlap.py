"""Steps that begin before the host knows the tokens of the one before, on a device that gives them away late."""

import pytest
import torch
from scripted_core import make_tokenizer, write_tiny_model

from minivllm import LLM, SamplingParams
from minivllm.config.engine_args import EngineArgs
from minivllm.messages.step import NewSlot, ScheduledSlot, StepPlan
from minivllm.worker.devices import DEVICES
from minivllm.worker.devices.cpu import CpuDevice
from minivllm.worker.sampling.sampler import NAN_LOGITS
from minivllm.worker.worker import Worker

OPTIONS = {"load_format": "dummy", "dtype": "float32", "cpu_threads": 1, "block_size": 4, "max_model_len": 64, "seed": 0}


class Late(CpuDevice):
    """Tokens are known when they are asked for, as on a GPU; `log` has what began and what was waited for."""

    overlaps = True
    log: list[str] = []

    def fetch(self, tensors):
        copies = [tensor.clone() for tensor in tensors]
        self.log.append("begin")

        def wait():
            self.log.append("wait")
            return copies

        return wait


@pytest.fixture
def late(monkeypatch):
    Late.log = []
    return lambda: monkeypatch.setitem(DEVICES, "cpu", Late)


def test_nothing_changes_but_the_order_of_work(tmp_path, late):
    """Texts of many lengths, in few slots, with a stop, penalties, logprobs, and so few blocks that some are preempted."""
    tokenizer = make_tokenizer()
    folder = str(write_tiny_model(tmp_path, tokenizer))
    prompts = [[i, *range(100, 101 + i % 7)] for i in range(40, 52)]
    ways = [
        SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=1, seed=3, max_tokens=17, ignore_eos=True),
        SamplingParams(temperature=0.7, seed=4, max_tokens=20, repetition_penalty=1.3, presence_penalty=0.5, logprobs=0),
        SamplingParams(temperature=1, seed=5, max_tokens=1, prompt_logprobs=1),
    ]
    params = [ways[i] if i < 4 else ways[i % 2] for i in range(len(prompts))]
    found = []
    for ahead in (False, True):
        if ahead:
            late()
        with LLM(folder, num_gpu_blocks_override=20, max_num_seqs=5, **OPTIONS) as llm:
            outputs = [r.outputs[0] for r in llm.generate(prompts, params, use_tqdm=False)]
            assert {metric.name: metric for metric in llm.get_metrics()}["minivllm:num_preemptions"].value > 0
        ids = [output.token_ids for output in outputs]
        logprobs = [[{t: e.logprob for t, e in entry.items()} for entry in output.logprobs or ()] for output in outputs]
        found.append((ids, logprobs))
    assert found[0][0] == found[1][0]
    assert "begin begin wait begin wait" in " ".join(Late.log)
    for plain, overlapped in zip(found[0][1], found[1][1], strict=True):
        for one, other in zip(plain, overlapped, strict=True):
            assert one == pytest.approx(other, abs=1e-5)


def worker_of(tmp_path):
    worker = Worker(EngineArgs(model=str(write_tiny_model(tmp_path, make_tokenizer())), device="cpu", **OPTIONS).resolve())
    worker.init_device()
    worker.load_model()
    worker.allocate_kv(40)
    return worker


def test_a_step_begins_before_the_last_one_is_waited_for(tmp_path, late):
    expected = run(worker_of(tmp_path), at_once=True)
    late()
    worker = worker_of(tmp_path)
    assert worker.max_in_flight == 2
    assert run(worker, at_once=False) == expected
    assert Late.log == ["begin", "begin", "begin", "wait", "wait", "wait"]


def run(worker, at_once):
    """Three tokens of two requests, one of which joins later."""
    greedy = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    plans = [
        StepPlan(0, [], [NewSlot(0, "a", [5, 6, 7], 3, 0, [0, 1, 2], greedy, [], [])], [ScheduledSlot(0, 3, 0, [], True)]),
        StepPlan(
            1,
            [],
            [NewSlot(1, "b", [8, 9], 2, 0, [3, 4], greedy, [], [])],
            [ScheduledSlot(0, 1, 3, [], True), ScheduledSlot(1, 2, 0, [], True)],
        ),
        StepPlan(2, [], [], [ScheduledSlot(0, 1, 4, [], True), ScheduledSlot(1, 1, 2, [], True)]),
    ]
    if at_once:
        return [worker.execute(plan).results for plan in plans]
    return [wait().results for wait in [worker.begin(plan) for plan in plans]]


def test_a_late_token_of_a_slot_that_changed_hands_is_dropped(tmp_path, late):
    late()
    worker = worker_of(tmp_path)
    penalized = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, presence_penalty=0.5)
    first, second = (NewSlot(0, name, [5, 6, token], 3, 0, [0, 1], penalized, [], []) for name, token in (("a", 7), ("b", 8)))
    alone = worker.execute(StepPlan(0, [], [second], [ScheduledSlot(0, 3, 0, [], True)])).results
    alone += worker.execute(StepPlan(1, [], [], [ScheduledSlot(0, 1, 3, [], True)])).results
    waits = [
        worker.begin(plan)
        for plan in (
            StepPlan(2, [0], [first], [ScheduledSlot(0, 3, 0, [], True)]),
            StepPlan(3, [0], [second], [ScheduledSlot(0, 3, 0, [], True)]),
            StepPlan(4, [], [], [ScheduledSlot(0, 1, 3, [], True)]),
        )
    ]
    _, *results = (result for wait in waits for result in wait().results)
    assert results == alone


def test_an_error_is_no_token(tmp_path, late):
    late()
    worker = worker_of(tmp_path)
    worker._runner._model.model.norm.weight[:] = torch.nan
    waits = [
        worker.begin(
            StepPlan(0, [], [NewSlot(0, "a", [5], 1, 0, [0], SamplingParams(), [], [])], [ScheduledSlot(0, 1, 0, [], True)])
        ),
        worker.begin(StepPlan(1, [], [], [ScheduledSlot(0, 1, 1, [], True)])),
    ]
    assert [result.error for wait in waits for result in wait().results] == [NAN_LOGITS, NAN_LOGITS]
