"""A request's grammar follows the tokens that are accepted, whatever becomes of the steps."""

import pytest
from fake_worker import FakeExecutor, FakeWorker, collect, expected_output, make_config, make_request

from minivllm.core.engine_core import EngineCore


class Recorder:
    """A grammar that allows everything, up to a number of tokens."""

    error = None
    mask_size = 8

    def __init__(self, most: int = 99):
        self.tokens: list[int] = []
        self.masked: list[int] = []  # how many tokens it had seen at each mask
        self._most = most

    @property
    def ended(self) -> bool:
        return len(self.tokens) >= self._most

    def write_mask(self, row: memoryview) -> None:
        self.masked.append(len(self.tokens))
        row[:] = bytes([len(self.tokens)] * 8)

    def accept(self, token: int) -> None:
        self.tokens.append(token)

    def copy(self) -> "Recorder":
        return Recorder(self._most)


def make_core(num_blocks=64, depth=1, **options):
    config = make_config(**options)
    return EngineCore(config, FakeExecutor(FakeWorker(config), depth), num_blocks)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_blocks", [64, 7], ids=["roomy", "preempting"])
def test_each_mask_is_made_after_the_token_before_it(depth, num_blocks):
    core = make_core(num_blocks, depth, max_num_batched_tokens=8)
    requests = [make_request(name, range(1, 12), ignore_eos=True, max_tokens=10) for name in "abc"]
    grammars = [Recorder(), Recorder(), None]
    for request, grammar in zip(requests, grammars, strict=True):
        core.scheduler.add(request, grammar)
    outputs = collect(core)
    for request, grammar in zip(requests, grammars, strict=True):
        expected = expected_output(request, 64)[0]
        assert outputs[request.request_id].tokens == expected
        if grammar is not None:
            assert grammar.tokens == expected
            assert sorted(set(grammar.masked)) == list(range(10)) and grammar.masked == sorted(grammar.masked)
    for plan in core.executor.plans:
        if plan.masks is not None:
            assert set(plan.masks.slots) <= {each.slot for each in plan.scheduled if each.sample}
            assert len(plan.masks.rows) == 8 * len(plan.masks.slots)
    assert (core.scheduler.stats().num_preemptions > 0) == (num_blocks == 7)


def test_a_grammar_that_cannot_go_on_ends_the_text():
    core = make_core()
    request = make_request("a", [1, 2], ignore_eos=True, max_tokens=20, min_tokens=9)
    core.scheduler.add(request, Recorder(most=3))
    endings = []
    while core.has_work():
        batch = core.step()
        endings += [output for output in batch.outputs if output.finish_reason is not None] if batch else []
    [ending] = endings
    assert str(ending.finish_reason) == "stop" and ending.stop_reason is None and ending.grammar_ended
