"""`AsyncLLMEngine` over a scripted core: streams, aborts, refusals, death."""

import asyncio

import pytest
from scripted_core import EOS, ScriptedClient, make_engine_config

from minivllm.engine.async_engine import LONG_TEXT, AsyncLLMEngine
from minivllm.errors import ClientError, ConfigError, DeadlineError, EngineDeadError, OverloadedError, ServerError
from minivllm.messages.sampling_params import OutputKind, SamplingParams

DELTA, FINAL = OutputKind.DELTA, OutputKind.FINAL_ONLY


async def collect(engine, prompt="The capital", request_id="r", **options):
    params = SamplingParams(**{"max_tokens": 6, **options})
    return [output async for output in engine.generate(prompt, params, request_id)]


async def settle(engine):
    while engine.num_running_requests:
        await asyncio.sleep(0)


def test_kinds_of_output(run_engine, tokenizer):
    async def test(engine, client):
        whole = tokenizer.decode(tokenizer.encode(" one two three") * 2)
        delta = await collect(engine, output_kind=DELTA, max_tokens=6)
        final = await collect(engine, output_kind=FINAL, max_tokens=6)
        growing = await collect(engine, max_tokens=6)
        assert len(final) == 1
        ids = final[0].outputs[0].token_ids
        text = final[0].outputs[0].text
        assert len(ids) == 6 and whole.startswith(text) and text == tokenizer.decode(ids)
        assert "".join(o.outputs[0].text for o in delta) == text
        assert [t for o in delta for t in o.outputs[0].token_ids] == ids
        assert [len(o.outputs[0].token_ids) for o in growing] == list(range(1, 7))
        assert growing[-1].outputs[0].text == text and text.startswith(growing[0].outputs[0].text)
        assert [o.finished for o in delta] == [False] * 5 + [True]
        assert delta[-1].outputs[0].finish_reason == "length"
        assert final[0].prompt == "The capital" and final[0].prompt_token_ids == tokenizer.encode("The capital")
        assert final[0].num_cached_tokens == 1
        times = final[0].metrics
        assert times.arrival_time <= times.first_scheduled_time <= times.first_token_time <= times.finished_time

    run_engine(test)


def test_slow_reader_gets_merged_outputs(run_engine):
    async def test(engine, client):
        stream = engine.generate("The", SamplingParams(max_tokens=6, output_kind=DELTA, logprobs=1), "r")
        first = await anext(stream)
        await settle(engine)
        rest = [output async for output in stream]
        assert len(first.outputs[0].token_ids) == 1 and len(rest) == 1
        assert len(rest[0].outputs[0].token_ids) == len(rest[0].outputs[0].logprobs) == 5
        assert rest[0].finished

    run_engine(test)


def test_end_by_eos_and_stop_token(run_engine, core, tokenizer):
    async def test(engine, client):
        prompt = tokenizer.encode("The")
        core.scripts[tuple(prompt)] = [*tokenizer.encode(" Paris"), tokenizer.id_of(EOS)]
        choice = (await collect(engine, prompt, max_tokens=30, output_kind=FINAL))[0].outputs[0]
        assert (choice.text, choice.finish_reason, choice.stop_reason) == (" Paris", "stop", None)
        assert choice.token_ids[-1] == tokenizer.id_of(EOS)
        stop = tokenizer.encode(" two")[-1]
        for include in (False, True):
            options = {"stop_token_ids": [stop], "include_stop_str_in_output": include, "max_tokens": 30, "output_kind": FINAL}
            choice = (await collect(engine, "x", **options))[0].outputs[0]
            assert choice.text == tokenizer.decode(choice.token_ids if include else choice.token_ids[:-1])
            assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)

    run_engine(test)


@pytest.mark.parametrize("kind", list(OutputKind))
def test_stop_string_ends_the_core_within_a_step(run_engine, core, kind):
    async def test(engine, client):
        outputs = await collect(engine, "x", stop=["o thr", "zzz"], max_tokens=60, output_kind=kind)
        text = "".join(o.outputs[0].text for o in outputs) if kind == DELTA else outputs[-1].outputs[0].text
        last = outputs[-1].outputs[0]
        assert (text, last.finish_reason, last.stop_reason) == (" one tw", "stop", "o thr")
        assert len(core.aborted) == 1 and not core.running

    run_engine(test)


def test_stop_string_waits_for_min_tokens(run_engine, tokenizer):
    async def test(engine, client):
        per_word = len(tokenizer.encode(" one two three"))
        options = {"stop": ["one"], "max_tokens": 40, "output_kind": FINAL}
        early = (await collect(engine, "x", **options))[0].outputs[0]
        late = (await collect(engine, "x", min_tokens=per_word, **options))[0].outputs[0]
        assert early.text == " " and late.text == " one two three " and late.stop_reason == "one"

    run_engine(test)


def test_several_choices(run_engine, core):
    async def test(engine, client):
        final = await collect(engine, n=3, temperature=1.0, seed=7, output_kind=FINAL)
        assert [c.index for c in final[0].outputs] == [0, 1, 2] and final[0].finished
        assert [r.sampling_params.seed for r in core.added] == [7, 8, 9]
        assert [r.sampling_params.n for r in core.added] == [1, 1, 1]
        assert len({r.request_id for r in core.added}) == 3
        texts = ["", "", ""]
        deltas = await collect(engine, n=3, temperature=1.0, output_kind=DELTA)
        for output in deltas:
            for choice in output.outputs:
                texts[choice.index] += choice.text
        assert texts == [c.text for c in final[0].outputs]
        assert [o.finished for o in deltas] == [False] * (len(deltas) - 1) + [True]
        assert [r.sampling_params.seed for r in core.added[3:]] == [None] * 3

    run_engine(test)


def test_logprobs(run_engine, tokenizer):
    async def test(engine, client):
        outputs = await collect(engine, "The capital of", logprobs=1, prompt_logprobs=0, output_kind=DELTA)
        num_prompt = len(tokenizer.encode("The capital of"))
        assert len(outputs[0].prompt_logprobs) == num_prompt
        assert outputs[0].prompt_logprobs[0] is None and all(outputs[0].prompt_logprobs[1:])
        assert all(output.prompt_logprobs is None for output in outputs[1:])
        entries = [entry for output in outputs for entry in output.outputs[0].logprobs]
        ids = [token for output in outputs for token in output.outputs[0].token_ids]
        assert [next(iter(entry)) for entry in entries] == ids
        assert outputs[-1].outputs[0].cumulative_logprob == -0.5 * len(ids)
        assert entries[0][ids[0]].decoded_token == tokenizer.token_text(ids[0])
        lone = await collect(engine, [65], prompt_logprobs=1, n=2, temperature=1.0, output_kind=FINAL)
        assert lone[0].prompt_logprobs == [None]

    run_engine(test)


def test_without_text(run_engine):
    async def test(engine, client):
        output = (await collect(engine, "x", detokenize=False, logprobs=0, output_kind=FINAL))[0].outputs[0]
        assert output.text == "" and len(output.token_ids) == 6
        assert output.logprobs[0][output.token_ids[0]].decoded_token is None

    run_engine(test)


def test_closing_the_generator_aborts(run_engine, core):
    async def test(engine, client):
        stream = engine.generate("The", SamplingParams(max_tokens=50, n=2), "r")
        await anext(stream)
        await stream.aclose()
        assert sorted(core.aborted) == sorted(r.request_id for r in core.added)
        assert engine.num_running_requests == 0

        task = asyncio.create_task(collect(engine, max_tokens=50))
        while engine.num_running_requests == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not core.running
        assert (
            'request_success_total{model_name="fake",engine="0",finished_reason="abort"} 3.0'
            in engine.metrics.render().decode()
        )

    run_engine(test)


def test_a_reader_may_have_enough_of_a_choice(run_engine, core):
    async def test(engine, client):
        params = SamplingParams(max_tokens=20, n=2, temperature=1.0, output_kind=DELTA)
        enough, ends = set(), {}
        async for output in engine.generate("x", params, "r", enough=enough):
            ends |= {choice.index: choice.finish_reason for choice in output.outputs}
            enough.add(0)
        assert ends == {0: "stop", 1: "length"} and output.finished
        assert core.aborted == [core.added[0].request_id] and not core.running and engine.num_running_requests == 0

    run_engine(test)


def test_abort_by_id(run_engine, core):
    async def test(engine, client):
        streams = [engine.generate("The", SamplingParams(max_tokens=50), "same") for _ in range(2)]
        firsts = [await anext(stream) for stream in streams]
        await engine.abort("same")
        await engine.abort("unknown")
        assert not core.running
        for first, stream in zip(firsts, streams, strict=True):
            rest = [output async for output in stream]
            assert first.request_id == "same"
            assert rest[-1].finished and rest[-1].outputs[0].finish_reason == "abort"

    run_engine(test)


def test_one_bad_request_fails_alone(run_engine, core):
    async def test(engine, client):
        core.failing.add("bad")
        good = asyncio.create_task(collect(engine, "x", request_id="good"))
        with pytest.raises(ServerError, match="NaN logits"):
            await collect(engine, "x", request_id="bad", n=2, temperature=1.0)
        assert (await good)[-1].outputs[0].finish_reason == "length"

    run_engine(test)


def test_refusals_come_before_the_first_output(run_engine, core):
    async def test(engine, client):
        for prompt in ("", [], [1, 10**6], [-1], {"cache_salt": "x"}, 7, ["a", "b"], "\ud800"):
            with pytest.raises(ClientError):
                await collect(engine, prompt)
        with pytest.raises(ClientError, match="maximum context length is 64 tokens"):
            await collect(engine, [65] * 70)
        assert core.added == []

    run_engine(test)


def test_bounded_queue(run_engine, core):
    async def test(engine, client):
        client.pause()
        tasks = [asyncio.create_task(collect(engine, request_id=str(i))) for i in range(4)]
        while len(core.added) < 4:
            await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="currently busy") as caught:
            await collect(engine, request_id="late")
        assert 1 <= caught.value.retry_after <= 60
        engine.check_admission(0)
        client.resume()
        await asyncio.gather(*tasks)
        engine.check_admission(4)
        with pytest.raises(OverloadedError):
            engine.check_admission(5)
        assert "admission_rejections_total" in engine.metrics.render().decode()

    run_engine(test, max_num_seqs=2, max_num_queued_reqs=2)


def test_long_text_is_tokenized_beside_the_loop(run_engine, core):
    async def test(engine, client):
        long = asyncio.create_task(collect(engine, "one " * LONG_TEXT, truncate_prompt_tokens=5, output_kind=FINAL))
        short = await collect(engine, "one", output_kind=FINAL)
        assert short[0].finished and not long.done()
        assert len((await long)[0].prompt_token_ids) == 5

    run_engine(test)


def test_a_timeout_gives_what_there_is_or_an_error(run_engine, core):
    async def test(engine, client):
        params = SamplingParams(max_tokens=50, output_kind=FINAL)
        client.pause()
        with pytest.raises(DeadlineError):
            await anext(engine.generate("x", params, "late", timeout=0.01))
        assert [core_id.partition("#")[0] for core_id in core.aborted] == ["late"]
        delta = engine.generate("x", SamplingParams(max_tokens=50, output_kind=DELTA), "cut", timeout=0.2)
        client.resume()
        tokens = (await anext(delta)).outputs[0].token_ids
        client.pause()
        async for output in delta:
            tokens += output.outputs[0].token_ids
        assert output.finished and output.outputs[0].finish_reason == "timeout" and 0 < len(tokens) < 50
        assert len(core.aborted) == 2 and not core.running
        client.resume()
        whole = [output async for output in engine.generate("x", params, "in time", timeout=60)]
        assert whole[0].outputs[0].finish_reason == "length"
        assert engine.metrics.total("request_success") == 3 and engine.num_running_requests == 0

    run_engine(test)


def test_live_requests(run_engine, core):
    async def test(engine, client):
        params = SamplingParams(max_tokens=50, n=2, output_kind=DELTA)
        stream = engine.generate("x", params, "talks")
        await anext(stream)
        client.pause()
        waits = asyncio.create_task(collect(engine, "The capital", request_id="waits", max_tokens=4))
        while len(core.added) < 3:
            await asyncio.sleep(0)
        talks, waiting = await engine.live_requests()
        assert (talks.id, talks.state, talks.num_choices, talks.waits_for) == ("talks", "decode", 2, None)
        assert talks.num_output_tokens >= 2 and talks.queue_ms == 0 and talks.decode_ms is not None
        assert (waiting.id, waiting.state, waiting.waits_for) == ("waits", "waiting", "slot")
        assert waiting.num_output_tokens == 0 and waiting.prefill_ms is None and waiting.age_ms == waiting.queue_ms
        await engine.abort("waits")
        assert (await waits)[-1].outputs[0].finish_reason == "abort"
        await stream.aclose()
        assert await engine.live_requests() == []
        client.resume()

    run_engine(test)


def test_death_ends_every_stream(run_engine, core):
    async def test(engine, client):
        heard = []
        engine.on_death(heard.append)
        tasks = [asyncio.create_task(collect(engine, "x", max_tokens=50, request_id=str(i))) for i in range(3)]
        while len(core.added) < 3:
            await asyncio.sleep(0)
        await engine.check_health()
        assert engine.is_running and engine.dead_error is None
        client.die()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, EngineDeadError) for result in results)
        assert not engine.is_running and heard == [engine.dead_error]
        with pytest.raises(EngineDeadError):
            await engine.check_health()
        with pytest.raises(EngineDeadError):
            await collect(engine)
        core.running.clear()

    run_engine(test)


def test_call_and_drain(run_engine, core):
    async def test(engine, client):
        assert await engine.call("echo", 1, "a") == (1, "a")
        with pytest.raises(ClientError):
            await engine.call("nothing")
        assert await engine.drain(0)
        task = asyncio.create_task(collect(engine, max_tokens=20))
        while not core.added:
            await asyncio.sleep(0)
        client.pause()
        assert not await engine.drain(0.01)
        client.resume()
        assert await engine.drain(5)
        await task

    run_engine(test)


def test_start_that_fails(tokenizer, core):
    async def main():
        engine = AsyncLLMEngine(make_engine_config(tokenizer), ScriptedClient(core, ConfigError("too large")), tokenizer)
        for _ in range(2):
            with pytest.raises(ConfigError, match="too large"):
                await engine.start()
        assert engine.dead_error is not None
        engine.shutdown()
        engine.shutdown()

    asyncio.run(main())


def test_metrics_at_rest(run_engine):
    async def test(engine, client):
        await collect(engine, max_tokens=6)
        text = engine.metrics.render().decode()
        labels = '{model_name="fake",engine="0"}'
        for name, value in (
            ("num_requests_running", 0.0),
            ("num_requests_waiting", 0.0),
            ("kv_cache_usage_perc", 0.0),
            ("generation_tokens_total", 6.0),
            ("num_preemptions_total", 2.0),
            ("time_to_first_token_seconds_count", 1),
            ("inter_token_latency_seconds_count", 5),
            ("request_queue_time_seconds_count", 1),
        ):
            assert f"minivllm:{name}{labels} {value}\n" in text, name
        assert 'minivllm:cache_config_info{model_name="fake",engine="0",block_size="4"' in text

    run_engine(test)
