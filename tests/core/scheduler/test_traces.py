"""Random traces: whatever comes and goes, every request gets exactly the tokens that it would get alone."""

from dataclasses import dataclass

from fake_worker import (
    FakeExecutor,
    FakeWorker,
    FirstStage,
    absorb,
    check_blocks,
    expected_output,
    logprob_of,
    make_config,
    make_request,
    root_of,
    salt_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.core.engine_core import EngineCore
from minivllm.messages.stats import SchedulerStats

MAX_MODEL_LEN = 40


@dataclass
class Trace:
    options: dict
    num_blocks: int
    depth: int
    stages: int
    arrivals: list  # (step, request)
    aborts: dict  # request id → step


@st.composite
def traces(draw):
    block_size = draw(st.sampled_from([1, 2, 4]))
    chunked = draw(st.booleans())
    num_blocks = draw(st.integers(1, 3 * MAX_MODEL_LEN // block_size))
    options = {
        "block_size": block_size,
        "enable_prefix_caching": draw(st.booleans()),
        "enable_chunked_prefill": chunked,
        "max_num_batched_tokens": draw(st.integers(1, 24)) if chunked else draw(st.integers(MAX_MODEL_LEN, 60)),
        "max_num_seqs": draw(st.integers(1, 6)),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 5])),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
    }
    shared = draw(st.lists(st.integers(0, 48), min_size=12, max_size=12))
    arrivals, aborts = [], {}
    for i in range(draw(st.integers(1, 9))):
        salt = draw(st.sampled_from(["", "", "@a", "@b"]))
        request_id = f"{i}{salt}{draw(st.sampled_from(['', '', '', '/fails']))}"
        prompt = shared[: draw(st.integers(0, 12))] + draw(st.lists(st.integers(0, 48), min_size=1, max_size=10))
        max_tokens = draw(st.integers(0, 24))
        request = make_request(
            request_id,
            prompt,
            salt=salt_of(request_id),
            priority=draw(st.integers(-1, 1)),
            arrival=float(draw(st.integers(0, 3))),
            max_tokens=max_tokens,
            min_tokens=draw(st.integers(0, max_tokens)),
            ignore_eos=draw(st.booleans()),
            stop_token_ids=draw(st.lists(st.integers(0, 48), max_size=2)),
            seed=draw(st.sampled_from([None, 7])),
            logprobs=draw(st.sampled_from([None, 1])),
            prompt_logprobs=draw(st.sampled_from([None, None, 1])),
        )
        arrivals.append((draw(st.integers(0, 12)), request))
        if draw(st.integers(0, 4)) == 0:
            aborts[request_id] = draw(st.integers(0, 20))
    stages = draw(st.sampled_from([1, 1, 2, 3]))
    depth = draw(st.sampled_from([1, 2, 3])) if stages == 1 else stages
    return Trace(options, num_blocks, depth, stages, arrivals, aborts)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(traces())
def test_every_request_gets_its_own_tokens(trace):
    config = make_config(max_model_len=MAX_MODEL_LEN, stages=trace.stages, **trace.options)
    executor = FakeExecutor(FakeWorker(config), trace.depth, FirstStage(config) if trace.stages > 1 else None)
    core = EngineCore(config, executor, trace.num_blocks)
    answers, last = run(core, executor, trace)

    scheduler = core.scheduler
    assert not core.has_work()
    check_blocks(scheduler)
    assert scheduler.kv_cache.usage == 0
    assert (last.num_running, last.num_waiting, last.kv_cache_usage) == (0, 0, 0.0)
    for _, request in trace.arrivals:
        check_answer(request, answers.get(request.request_id), scheduler.max_model_len, trace)


def run(core, executor, trace):
    answers, last, step, num_plans = {}, SchedulerStats(), 0, 0
    num_preemptions = 0
    arrivals = sorted(trace.arrivals, key=lambda a: a[0])
    while arrivals or core.has_work():
        core.add([arrivals.pop(0)[1] for _ in range(sum(1 for at, _ in arrivals if at <= step))])
        for request_id, at in trace.aborts.items():
            if at == step:
                core.abort([request_id])
        batch = core.step()
        step += 1
        absorb(answers, batch)
        last = batch.stats if batch else last
        assert step < 3000, "no progress"
        check_blocks(core.scheduler)
        if len(executor.plans) > num_plans:
            num_plans += 1
            check_plan(core.scheduler, executor.plans[-1], trace.options)
            preempted = core.scheduler.stats().num_preemptions > num_preemptions
            assert not (preempted and executor.plans[-1].new), "admitted somebody while others had to leave"
        num_preemptions = core.scheduler.stats().num_preemptions
    return answers, last


def check_plan(scheduler, plan, options):
    assert 0 < plan.num_tokens <= options["max_num_batched_tokens"]
    assert len(scheduler._running) <= options["max_num_seqs"]
    assert [r.order for r in scheduler._running] == sorted(r.order for r in scheduler._running)
    if not options["enable_chunked_prefill"]:
        new = {n.slot: n for n in plan.new}
        for scheduled in plan.scheduled:
            if scheduled.slot in new:
                assert scheduled.sample
    elif options["long_prefill_token_threshold"]:
        assert all(s.num_tokens <= options["long_prefill_token_threshold"] for s in plan.scheduled)


def check_answer(request, answer, max_model_len, trace):
    tokens, reason, stop_reason = expected_output(request, max_model_len)
    num_prompt = len(request.prompt_token_ids)
    if num_prompt > max_model_len:
        tokens, reason, stop_reason = [], "error", None
    if request.request_id in trace.aborts and (answer is None or answer.reason is None):
        assert answer is None or answer.tokens == tokens[: len(answer.tokens)]
        return
    assert (answer.tokens, answer.reason, answer.stop_reason) == (tokens, reason, stop_reason)
    assert (answer.error is not None) == (reason == "error")
    assert answer.cached % trace.options["block_size"] == 0
    assert answer.cached < num_prompt
    if request.sampling_params.logprobs is not None and reason != "error":
        assert answer.logprobs == [logprob_of(t, num_prompt + i) for i, t in enumerate(tokens)]
    if request.sampling_params.prompt_logprobs is not None and (reason != "error" or tokens):
        expected = [logprob_of(t, i) for i, t in enumerate(request.prompt_token_ids)][1:]
        assert answer.prompt_logprobs == expected


def test_the_oracle_depends_on_salt_and_seed():
    assert root_of("1@a") != root_of("1@b") != root_of("1")
    outputs = [
        expected_output(make_request(f"x{salt}", [3, 4], seed=seed, ignore_eos=True), 64)[0]
        for salt in ("", "@a")
        for seed in (None, 7)
    ]
    assert len({tuple(o) for o in outputs}) == 4
