"""What the scheduler decides, case by case."""

import pytest
from fake_worker import FakeExecutor, FakeWorker, FirstStage, absorb, collect, expected_output, make_config, make_request

from minivllm.core.engine_core import EngineCore
from minivllm.core.scheduler.rules import Rule
from minivllm.messages.step import SlotResult, StepResult


def make_core(num_blocks=64, depth=1, **options):
    config = make_config(**options)
    return EngineCore(config, FakeExecutor(FakeWorker(config), depth), num_blocks)


def tokens_of(plan):
    return {s.slot: (s.num_computed_tokens, s.num_tokens, s.sample) for s in plan.scheduled}


def endless(request_id, num_prompt, first=1, **params):
    """A request with its own prompt that ends by length only."""
    prompt = [first + i % 7 for i in range(num_prompt)]
    return make_request(request_id, prompt, ignore_eos=True, **{"max_tokens": 20, **params})


def test_prefill_is_chunked_beside_decode():
    core = make_core(max_num_batched_tokens=8)
    core.add([endless("a", 3), endless("b", 12, first=20)])
    plans = core.executor.plans
    for _ in range(3):
        core.step()
    assert [tokens_of(p) for p in plans] == [
        {0: (0, 3, True), 1: (0, 5, False)},
        {0: (3, 1, True), 1: (5, 7, True)},
        {0: (4, 1, True), 1: (12, 1, True)},
    ]
    assert [len(p.new) for p in plans] == [2, 0, 0]


def test_without_chunking_a_prompt_waits_for_room():
    core = make_core(max_num_batched_tokens=64, max_model_len=64, enable_chunked_prefill=False)
    core.add([endless("a", 40), endless("b", 30, first=20), endless("c", 5, first=30)])
    core.step()
    core.step()
    assert [tokens_of(p) for p in core.executor.plans] == [
        {0: (0, 40, True)},
        {0: (40, 1, True), 1: (0, 30, True), 2: (0, 5, True)},
    ]


def test_a_long_prefill_leaves_room_for_others():
    core = make_core(max_num_batched_tokens=16, long_prefill_token_threshold=6)
    core.add([endless("a", 20), endless("b", 4, first=20)])
    core.step()
    assert tokens_of(core.executor.plans[0]) == {0: (0, 6, False), 1: (0, 4, True)}


def test_slots_limit_the_running_and_are_used_again():
    core = make_core(max_num_seqs=2)
    core.add([endless("a", 3, max_tokens=1), endless("b", 3), endless("c", 3)])
    core.step()
    stats = core.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (1, 1)
    core.step()
    assert core.executor.plans[1].freed_slots == [0]
    assert [(n.slot, n.request_id) for n in core.executor.plans[1].new] == [(0, "c")]


def test_prefix_hits_count_once_and_recompute_is_no_hit():
    prompt = list(range(1, 13))
    core = make_core(num_blocks=9, max_num_seqs=2)
    core.add([make_request("a", prompt, ignore_eos=True, max_tokens=1)])
    collect(core)
    core.add([make_request(x, [*prompt, y], ignore_eos=True, max_tokens=20) for x, y in (("b", 40), ("c", 41))])
    answers = collect(core)
    stats = core.scheduler.stats()
    assert stats.num_preemptions > 0
    assert [answers[x].cached for x in "bc"] == [12, 12]
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (12 + 13 + 13, 24)


def test_a_full_hit_still_computes_something_to_sample_from():
    core = make_core()
    core.add([endless("a", 12)])
    collect(core)
    core.add([endless("b", 12)])
    answers = collect(core)
    assert answers["b"].cached == 8
    assert answers["b"].tokens == expected_output(endless("b", 12), 64)[0]


@pytest.mark.parametrize(("num_tokens", "admitted"), [([400, 396], 1), ([400, 392], 2), ([800], 1)])
def test_newcomers_leave_the_running_some_room_to_grow(num_tokens, admitted):
    """1 % of 200 blocks stays free when somebody enters beside others; one alone may have everything."""
    core = make_core(num_blocks=200, max_model_len=800, max_num_batched_tokens=1000)
    core.add([endless(str(i), n, first=1 + 10 * i) for i, n in enumerate(num_tokens)])
    core.step()
    assert len(core.executor.plans[0].new) == admitted


def test_requests_of_one_step_share_their_prompt():
    core = make_core()
    core.add([make_request(str(i), range(1, 18), ignore_eos=True, max_tokens=2, seed=i) for i in range(4)])
    core.step()
    assert [s.num_tokens for s in core.executor.plans[0].scheduled] == [17, 1, 1, 1]
    assert core.scheduler.kv_cache.usage == (4 + 4) / 64


def test_a_prompt_computed_in_chunks_is_waited_for_not_computed_twice():
    """1,024 shared tokens and 32 of its own each; the threshold leaves room in the step that nobody may use for the same."""
    core = make_core(
        num_blocks=400, max_model_len=1100, max_num_seqs=5, max_num_batched_tokens=256, long_prefill_token_threshold=100
    )
    shared = [1 + i % 48 for i in range(1024)]
    requests = [make_request(str(i), [*shared, *[i + 1] * 32], ignore_eos=True, max_tokens=3) for i in range(4)]
    other = endless("other", 40, first=40)
    core.add([*requests, other])
    core.step()
    assert [n.request_id for n in core.executor.plans[0].new] == ["0", "other"]
    answers = collect(core)
    assert [answers[str(i)].cached for i in range(4)] == [0, 1024, 1024, 1024]
    stats = core.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (4 * 1056 + 40, 3 * 1024)
    # Every token of a prompt once, and a decoded one for each token but the last of each answer.
    assert stats.num_batched_tokens == 1024 + 4 * 32 + 40 + 4 * 2 + 19
    for request in requests:
        assert answers[request.request_id].tokens == expected_output(request, 1100)[0]


def test_who_waits_for_a_prompt_goes_on_when_that_one_ends():
    core = make_core(max_num_batched_tokens=16, long_prefill_token_threshold=4)
    shared = list(range(1, 41))
    core.add([make_request(x, [*shared, y], ignore_eos=True, max_tokens=1) for x, y in (("a", 41), ("b", 42))])
    core.step()
    core.step()
    core.abort(["a"])
    answers = collect(core)
    assert (answers["b"].cached, list(answers)) == (8, ["b"])


def test_prompt_logprobs_do_not_read_the_cache_but_fill_it():
    prompt = list(range(1, 14))
    core = make_core()
    core.add([make_request("a", prompt, max_tokens=1)])
    collect(core)
    core.add([make_request("b", prompt, max_tokens=1, prompt_logprobs=0)])
    answers = collect(core)
    assert (answers["b"].cached, len(answers["b"].prompt_logprobs)) == (0, 12)
    assert core.scheduler.stats().prefix_cache_queries == 13
    core.call("reset_prefix_cache", [])
    core.add([make_request("c", prompt, max_tokens=1, prompt_logprobs=0)])
    collect(core)
    core.add([make_request("d", prompt, max_tokens=1)])
    assert collect(core)["d"].cached == 12


def test_max_tokens_zero_computes_the_prompt_and_keeps_no_token():
    core = make_core()
    core.add([make_request("a", range(1, 10), max_tokens=0, prompt_logprobs=0)])
    answer = collect(core)["a"]
    assert (answer.tokens, answer.reason, len(answer.prompt_logprobs)) == ([], "length", 8)


def test_the_last_and_lowest_is_preempted_and_comes_back_first():
    core = make_core(num_blocks=9, scheduling_policy="priority", max_model_len=36)
    requests = [endless("low", 11, priority=5), endless("high", 11, first=20, priority=-5), endless("mid", 11, first=30)]
    core.add(requests[:1])
    answers = {}
    absorb(answers, core.step())
    core.add(requests[1:])
    order = []
    while core.has_work():
        before = {r.data.request_id for r in core.scheduler._running}
        absorb(answers, core.step())
        after = {r.data.request_id for r in core.scheduler._running}
        order += [f"-{x}" for x in sorted(before - after)] + [f"+{x}" for x in sorted(after - before)]
    # low gives way to mid, then mid to high; when high has ended, both come back, and low gives way once more
    assert order == ["+high", "+mid", "-low", "-mid", "-high", "+low", "+mid", "-low", "-mid", "+low", "-low"]
    assert [[n.request_id for n in p.new] for p in core.executor.plans if p.new] == [
        ["low"],
        ["high", "mid"],
        ["mid", "low"],
        ["low"],
    ]
    assert core.scheduler.stats().num_preemptions == 3
    for request in requests:
        assert answers[request.request_id].tokens == expected_output(request, 36)[0]


def test_a_pool_smaller_than_max_model_len_is_a_length_limit():
    core = make_core(num_blocks=4, max_model_len=64)
    assert core.scheduler.max_model_len == 16
    core.add([endless("a", 10, max_tokens=50), endless("too long", 17)])
    answers = collect(core)
    assert (len(answers["a"].tokens), answers["a"].reason) == (6, "length")
    assert answers["too long"].error == "a prompt of 17 tokens cannot be computed: 1 to 16 tokens can"


def test_what_could_hang_is_refused():
    with pytest.raises(ValueError, match="chunked"):
        make_core(enable_chunked_prefill=False, max_num_batched_tokens=32, max_model_len=64)
    core = make_core()
    core.add([make_request("a", [])])
    assert collect(core)["a"].reason == "error"
    core.add([endless("a", 4)])
    with pytest.raises(ValueError, match="in use"):
        core.add([endless("a", 4)])


def test_a_failed_request_ends_alone_and_its_blocks_are_not_shared():
    core = make_core()
    core.add([endless("good", 9), endless("bad", 9, first=20)])
    plan = core.scheduler.plan()
    outputs = core.scheduler.apply(plan, StepResult(plan.step_id, [SlotResult(0, [5]), SlotResult(1, [], error="NaN logits")]))
    assert [(o.request_id, o.error, str(o.finish_reason)) for o in outputs] == [
        ("good", None, "None"),
        ("bad", "NaN logits", "error"),
    ]
    core.add([endless("again", 9, first=20)])
    plan = core.scheduler.plan()
    assert [n.num_computed_tokens for n in plan.new] == [0]
    assert [s.slot for s in plan.scheduled] == [0, 1]


def test_a_late_result_of_a_preempted_request_is_void():
    core = make_core(num_blocks=6, depth=2, max_num_seqs=2)
    requests = [endless("a", 11, max_tokens=9), endless("b", 11, first=20, max_tokens=9)]
    core.add(requests)
    answers = collect(core)
    assert core.scheduler.stats().num_preemptions > 0
    for request in requests:
        assert answers[request.request_id].tokens == expected_output(request, 24)[0]


def test_no_step_is_planned_past_a_known_end():
    core = make_core(depth=2)
    core.add([endless("a", 4, max_tokens=3)])
    collect(core)
    assert [s.num_computed_tokens for p in core.executor.plans for s in p.scheduled] == [0, 4, 5]


def test_abort_ends_waiting_and_running_and_the_figures_follow():
    core = make_core(max_num_seqs=1)
    core.add([endless("a", 4), endless("b", 4)])
    core.step()
    core.abort(["a", "b", "never was"])
    assert core.has_work()
    batch = core.step()
    assert (batch.outputs, batch.stats.num_running, batch.stats.num_waiting) == ([], 0, 0)
    assert batch.stats.kv_cache_usage == 0
    assert not core.has_work()
    core.abort(["a"])
    assert not core.has_work()
    assert core.step() is None


def test_a_rule_can_skip_a_request_without_stopping_others():
    class NotYet(Rule):
        blocked = True
        accepted = []

        def start_step(self):
            self.accepted.append("step")

        def limit(self, request, num_tokens):
            return 0 if self.blocked and request.data.request_id == "a" else num_tokens

        def accept(self, request, num_tokens):
            self.accepted.append((request.data.request_id, num_tokens))

    core = make_core()
    rule = NotYet()
    core.scheduler._rules.append(rule)
    core.add([endless("a", 4), endless("b", 5, first=20)])
    core.step()
    rule.blocked = False
    core.step()
    assert rule.accepted == ["step", ("b", 5), "step", ("b", 1), ("a", 4)]


def test_stats_of_a_batch_are_a_copy():
    core = make_core()
    core.add([endless("a", 4)])
    first = core.step().stats
    core.step()
    assert (first.num_steps, first.num_batched_tokens, first.num_running) == (1, 4, 1)


def test_states_say_what_a_request_waits_for():
    core = make_core(num_blocks=8, max_num_seqs=2)
    core.add([endless("a", 14)])
    core.step()
    core.add([endless("b", 25, first=20), endless("c", 3, first=30)])
    core.step()
    a, b, c = core.call("request_states", [])
    assert (a.request_id, a.running, a.waits_for, a.num_tokens, a.num_computed_tokens) == ("a", True, None, 16, 15)
    assert (b.running, b.waits_for, b.num_computed_tokens, b.scheduled_time) == (False, "kv_cache", 0, 0)
    assert a.scheduled_time > 0 and (c.running, c.waits_for) == (False, "step_tokens")
    core.abort(["b"])
    core.add([endless("d", 3)])
    core.step()
    assert [state.waits_for for state in core.call("request_states", [])] == [None, None, "slot"]


def test_pipeline_stages_have_different_requests():
    config = make_config(stages=2)
    core = EngineCore(config, FakeExecutor(FakeWorker(config), 2, FirstStage(config)), 64)
    core.add([endless(str(i), 3, first=i) for i in range(5)])
    answers = collect(core)
    assert len(answers) == 5
    slots = [sorted(s.slot for s in plan.scheduled) for plan in core.executor.plans]
    assert slots[:6] == [[0, 1, 2], [3, 4], [0, 1, 2], [3, 4], [0, 1, 2], [3, 4]]
    decodes = [s for plan in core.executor.plans[2:] for s in plan.scheduled]
    assert all(s.token is not None for s in decodes)
