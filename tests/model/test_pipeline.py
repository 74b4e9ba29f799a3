"""Every family in two pipeline stages: the same tokens and logprobs as of one worker."""

import os
from pathlib import Path

import pytest
from model.conftest import BLOCK, Runner
from model.families import FAMILIES

from minivllm.config.engine_args import EngineArgs
from minivllm.distributed.groups import Layout
from minivllm.distributed.pipeline import LinkEnds
from minivllm.ipc.shm_ring import RingReader, RingWriter, open_ring
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import StepPlan, StepResult
from minivllm.worker.worker import Worker

PARAMS = SamplingParams(temperature=0.0, logprobs=3, prompt_logprobs=2)
PROMPTS = {0: [7], 2: list(range(9, 30)), 1: list(range(40, 50))}


class Stages:
    """In the place of a worker; one after the other, in this process."""

    def __init__(self, folder: Path):
        options = {"dtype": "float32", "block_size": BLOCK, "cpu_threads": 1, "max_num_seqs": 8, "max_model_len": 64}
        config = EngineArgs(model=str(folder), **options).resolve()
        self.ring = open_ring(1)
        self.writer = RingWriter(self.ring.memory, self.ring.ropes)
        ends = LinkEnds(None, self.writer), LinkEnds(RingReader(self.ring.memory, self.ring.bells[0]), None)
        self.workers = [Worker(config, Layout(1, 2).place(rank), "here", ends[rank]) for rank in range(2)]
        self.tokens: dict[int, int] = {}
        for worker in self.workers:
            worker.init_device()
            worker.load_model()
            worker.allocate_kv(64)

    def execute(self, plan: StepPlan) -> StepResult:
        for scheduled in plan.scheduled:
            scheduled.token = self.tokens.get(scheduled.slot) if scheduled.num_tokens == 1 else None
        assert self.workers[0].execute(plan).results == []
        result = self.workers[1].execute(plan)
        self.tokens |= {one.slot: one.token_ids[-1] for one in result.results if one.token_ids}
        return result

    def close(self) -> None:
        self.writer.close()
        for descriptor in (self.ring.memory, *self.ring.bells):
            os.close(descriptor)


def run(runner: Runner) -> Runner:
    new = [runner.new(slot, prompt, list(range(slot * 12, slot * 12 + 12)), PARAMS) for slot, prompt in PROMPTS.items()]
    runner.step({0: 1, 2: 13}, new[:2])
    runner.step({0: 1, 2: 8, 1: 4}, new[2:])
    runner.step({0: 1, 2: 1, 1: 6})
    for _ in range(3):
        runner.step({2: 1, 0: 1, 1: 1})
    return runner


@pytest.mark.parametrize("family", FAMILIES)
def test_two_stages_are_as_one(family, saved, make_runner):
    folder = saved(family).folder
    stages = Stages(folder)
    found = run(Runner(stages, 64))
    stages.close()
    whole = run(make_runner(folder, num_blocks=64, max_model_len=64))
    assert found.sequences == whole.sequences
    for slot, results in whole.results.items():
        for ours, right in zip(found.results[slot], results, strict=True):
            for a, b in zip(entries(ours), entries(right), strict=True):
                assert a.token_ids == b.token_ids
                assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def entries(result):
    return [*(result.logprobs or []), *(result.prompt_logprobs or [])]
