"""How much a step holds: the guess at its time, and what that leaves for prompts beside running streams."""

import random

import pytest
from fake_worker import FakeExecutor, FakeWorker, collect, make_config, make_request

from minivllm.core.engine_core import EngineCore
from minivllm.core.scheduler.step_costs import StepCosts, StepWork

BLOCKS = 4000


class TimedWorker(FakeWorker):
    """Says that steps take as long as on a machine with these costs; keeps what they took, and in which ones streams ran."""

    def __init__(self, config, scale=1.0):
        super().__init__(config)
        self.scale, self.steps, self.prompts = scale, [], []

    def execute(self, plan):
        result = super().execute(plan)
        work = StepWork()
        for scheduled in plan.scheduled:
            work.add(scheduled.num_tokens, scheduled.num_computed_tokens)
        result.seconds = self.scale * seconds_of(work)
        chunks = sum(s.num_tokens for s in plan.scheduled if s.num_tokens > 1)
        self.steps.append((len(plan.scheduled), chunks, result.seconds))
        return result


def seconds_of(work):
    return 0.009 + 3e-4 * work.num_tokens + 4e-6 * work.num_context + 2e-7 * work.num_pairs


def timed_core(**options):
    config = make_config(max_model_len=9000, max_num_batched_tokens=2048, max_num_seqs=128, **options)
    worker = TimedWorker(config)
    return EngineCore(config, FakeExecutor(worker), BLOCKS, StepCosts.from_prompts([(64, 0.06), (128, 0.11)])), worker


def long_prompt(request_id, length, **params):
    rng = random.Random(request_id)
    return make_request(request_id, [rng.randint(1, 50) for _ in range(length)], ignore_eos=True, **params)


def test_costs_come_near_the_truth_from_a_wrong_guess():
    rng, costs = random.Random(1), StepCosts(0.05, 1e-3)
    for step in range(300):
        work = StepWork()
        for _ in range(rng.randint(1, 32)):
            work.add(1, rng.randint(100, 600))
        if step % 2:
            work.add(rng.randint(16, 200), rng.randint(0, 2000))
        if step > 250:
            assert costs.predict(work) == pytest.approx(seconds_of(work), rel=0.25)
        costs.learn(work, seconds_of(work))
    before = costs.predict(work)
    costs.learn(work, 100 * before)
    assert before < costs.predict(work) < 1.5 * before


def test_a_chunk_fits_exactly():
    costs = StepCosts(0.01, 3e-4)
    for computed in (0, 500, 8000):
        fitting = costs.num_fitting(0.05, computed)
        assert costs.chunk_seconds(fitting, computed) <= 0.05 < costs.chunk_seconds(fitting + 1, computed)
    assert costs.num_fitting(0.0, 10) == costs.num_fitting(-1.0, 10) == 0


def test_streams_do_not_wait_for_prompts():
    core, worker = timed_core()
    core.add([long_prompt(f"s{i}", 200, max_tokens=150) for i in range(24)])
    core.add([long_prompt(f"p{i}", 6000, max_tokens=3) for i in range(2)])
    for worker.scale in (1.0, 2.0, 0.7):  # the machine changes
        for _ in range(20):
            core.step()
        with_streams = [(seconds, chunks) for slots, chunks, seconds in worker.steps[-12:] if slots > 2]
        assert max(seconds for seconds, _ in with_streams) < 0.14
        assert all(chunks >= 16 for _, chunks in with_streams)
    answers = collect(core)
    assert len(answers["p1"].tokens) == 3


@pytest.mark.parametrize(("scale", "longest"), [(2.0, 0.14), (8.0, 0.57)])
def test_where_decoding_is_slow_prompts_do_not_starve(scale, longest):
    """24 streams decode for 0.07 s and for 0.3 s; before, a prompt got 32 tokens of such a step."""
    core, worker = timed_core()
    core.add([long_prompt(f"s{i}", 200, max_tokens=150) for i in range(24)])
    while len(worker.steps) < 10 or worker.steps[-1][1]:
        core.step()
    worker.scale = scale
    core.add([long_prompt("p", 6000, max_tokens=3)])
    for _ in range(30):
        core.step()
    assert max(seconds for _, _, seconds in worker.steps[-15:]) < longest
    assert all(slots == 25 for slots, _, _ in worker.steps[-30:])
    assert sum(chunks for _, chunks, _ in worker.steps[-30:]) > 30 * 48


def test_without_streams_a_step_is_longer():
    core, worker = timed_core()
    core.add([long_prompt("p", 2500, max_tokens=2)])
    collect(core)
    assert sum(chunks for _, chunks, _ in worker.steps) == 2500
    assert max(seconds for _, _, seconds in worker.steps) < 0.3


def test_a_prompt_that_comes_first_leaves_the_streams_their_tokens():
    config = make_config(max_num_batched_tokens=8, max_num_seqs=4, scheduling_policy="priority")
    core = EngineCore(config, FakeExecutor(FakeWorker(config)), 64)
    core.add([make_request(str(i), [i + 1, 2], max_tokens=20, ignore_eos=True) for i in range(3)])
    core.step()
    core.add([make_request("first", range(1, 31), priority=-1, max_tokens=2, ignore_eos=True)])
    for _ in range(3):
        core.step()
    for plan in core.executor.plans[2:]:
        assert sorted(s.num_tokens for s in plan.scheduled) == [1, 1, 1, 5]
