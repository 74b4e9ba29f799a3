"""The choice among several cores, and several scripted cores behind one engine."""

import asyncio
import random
from dataclasses import replace

import pytest
from fake_worker import make_request
from scripted_core import ScriptedClient, ScriptedCore, make_engine_config

from minivllm.config.sections.parallel import ParallelConfig
from minivllm.engine.async_engine import AsyncLLMEngine
from minivllm.engine.balancer import CHUNK, BalancedClient, Balancer
from minivllm.errors import EngineDeadError
from minivllm.messages.output import EngineReady
from minivllm.messages.sampling_params import SamplingParams
from minivllm.utils.board import Board

ids = (f"r{i}" for i in range(10**6))


def place(balancer, prompt, salt=None, **params):
    request = make_request(next(ids), prompt, **{"max_tokens": 100, **params})
    request.cache_salt = salt
    return balancer.place(request), request.request_id


def document(seed, num_chunks):
    return random.Random(seed).choices(range(1000), k=num_chunks * CHUNK)


def test_equals_get_turns_and_the_idle_one_comes_first():
    balancer = Balancer([0, 0, 0])
    placed = [place(balancer, [1]) for _ in range(6)]
    assert [core for core, _ in placed] == [0, 1, 2, 0, 1, 2]
    balancer.forget(placed[4][1])
    assert place(balancer, [1])[0] == 1
    assert balancer.core_of(placed[5][1]) == 2 and balancer.core_of(placed[4][1]) is None


def test_every_core_gets_its_share():
    rng, balancer, counts, open_ids = random.Random(3), Balancer([10**6] * 4), [0] * 4, []
    for _ in range(2000):
        core, request_id = place(balancer, document(rng.random(), rng.randrange(4)), max_tokens=rng.randrange(300))
        counts[core] += 1
        open_ids.append(request_id)
        if len(open_ids) > 40:
            done = open_ids.pop(rng.randrange(40))
            balancer.note_output(done)
            balancer.forget(done)
    assert all(400 < count < 600 for count in counts)
    for request_id in open_ids:
        balancer.forget(request_id)
    assert list(balancer._work) == [0] * 4 and not balancer._placed


def test_long_prompts_and_long_answers_weigh_more():
    balancer = Balancer([0, 0])
    core, long = place(balancer, document(1, 40))
    assert [place(balancer, [1])[0] for _ in range(10)] == [1 - core] * 10
    balancer.note_output(long)  # its prompt has been computed
    assert [place(balancer, [1])[0] for _ in range(9)] == [core] * 9
    balancer = Balancer([0, 0])
    assert [place(balancer, [1], max_tokens=n)[0] for n in (10_000, 100, 100, 1, 1, 100, 100)] == [0, 1, 1, 1, 1, 1, 0]


def test_what_begins_alike_stays_together():
    balancer = Balancer([10**5, 10**5])
    first, second = document(1, 20), document(2, 20)
    homes = [place(balancer, first)[0], place(balancer, second)[0]]
    assert homes == [0, 1]
    for _ in range(5):  # each core has the same to do
        assert [place(balancer, [*prompt, 7])[0] for prompt in (second, first)] == [1, 0]
    assert place(balancer, first[: 10 * CHUNK] + document(3, 1))[0] == 0
    assert place(balancer, first, salt="mine")[0] == 1  # nothing of it is there, and there is less to do


def test_a_busy_core_is_not_worth_its_prefix():
    balancer = Balancer([10**5, 10**5])
    prompt = document(1, 6)
    home, request_id = place(balancer, prompt)
    balancer.note_output(request_id)
    cores = [place(balancer, prompt)[0] for _ in range(20)]
    assert cores[:2] == [home, home]  # worth 384 tokens, and a request is 100
    assert set(cores[4:]) == {0, 1} and abs(cores.count(0) - 10) <= 4


def test_a_short_prefix_holds_nobody_back():
    """As with a system prompt that all requests have: an idle core is better."""
    balancer = Balancer([10**5] * 2)
    prompt = document(1, 1)
    assert sorted(place(balancer, prompt)[0] for _ in range(8)) == [0] * 4 + [1] * 4


def test_what_other_processes_gave_counts():
    ours = Board(2, 2)
    balancers = [Balancer([0, 0], ours), Balancer([0, 0], Board(2, 2, own=1, memory=ours.memory))]
    core, request_id = place(balancers[0], document(1, 40))
    assert [place(balancers[1], [1])[0] for _ in range(10)] == [1 - core] * 10
    balancers[0].forget(request_id)
    assert [place(balancer, [1])[0] for balancer in balancers for _ in range(4)] == [core] * 8


def test_a_core_forgets_what_its_cache_cannot_hold():
    balancer = Balancer([4 * CHUNK, 4 * CHUNK])
    old = document(1, 3)
    balancer.forget(place(balancer, old)[1])
    for seed in (2, 3):
        balancer.forget(place(balancer, document(seed, 3))[1])
    assert [len(known) for known in balancer._known] == [4, 3]
    known = balancer._num_known
    prefixes = [list(balancer._known[0])[-1]]
    assert known(0, prefixes) == 1 and known(1, prefixes) == 0


@pytest.fixture
def run_cores(tokenizer):
    """`run_cores(test)`: `await test(engine, cores, clients)` over two scripted cores; nothing may be left afterwards."""

    def run(test, seed=None, **options):
        async def main():
            cores = [ScriptedCore(tokenizer) for _ in range(2)]
            clients = [ScriptedClient(core, EngineReady(100 + i, 4, 64 - i, 1)) for i, core in enumerate(cores)]
            config = replace(make_engine_config(tokenizer, **options), parallel=ParallelConfig(data_parallel_size=2))
            engine = AsyncLLMEngine(config, BalancedClient(clients, True, seed), tokenizer)
            try:
                await engine.start()
                await test(engine, cores, clients)
                assert engine.num_running_requests == 0 and not cores[0].running and not cores[1].running
                assert not engine._client._balancer._placed or engine.dead_error
            finally:
                engine.shutdown()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert all(client.closed for client in clients)
            assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

        asyncio.run(main())

    return run


async def collect(engine, request_id="r", prompt="The", **options):
    params = SamplingParams(**{"max_tokens": 6, **options})
    return [output async for output in engine.generate(prompt, params, request_id)]


def test_streams_choices_and_figures_of_two_cores(run_cores):
    async def test(engine, cores, clients):
        assert engine.max_model_len == 63
        for client in clients:
            client.pause()
        tasks = [asyncio.create_task(collect(engine, str(i), n=1 + i % 2, temperature=1.0)) for i in range(8)]
        while sum(len(core.added) for core in cores) < 12:
            await asyncio.sleep(0)
        for client in clients:
            client.resume()
        many = await asyncio.gather(*tasks)
        assert [[len(choice.token_ids) for choice in outputs[-1].outputs] for outputs in many] == [[6], [6, 6]] * 4
        assert [len(core.added) for core in cores] == [6, 6]
        assert {request.data_parallel_rank for request in cores[1].added} == {1}
        text = engine.metrics.render().decode()
        for engine_label, num_blocks in (("0", 100), ("1", 101)):
            labels = f'{{model_name="fake",engine="{engine_label}"'
            assert f"minivllm:generation_tokens_total{labels}}} 36.0\n" in text
            assert f'minivllm:request_success_total{labels},finished_reason="length"}} 6.0\n' in text
            assert f'minivllm:cache_config_info{labels},block_size="4",num_gpu_blocks="{num_blocks}"' in text
        assert text.count("# TYPE minivllm:generation_tokens_total counter\n") == 1
        assert engine.metrics.total("generation_tokens") == 72

    run_cores(test)


def test_abort_listing_and_calls_reach_every_core(run_cores):
    async def test(engine, cores, clients):
        streams = [engine.generate("The", SamplingParams(max_tokens=50, n=2, temperature=1.0), str(i)) for i in range(3)]
        for stream in streams:
            await anext(stream)
        for client in clients:
            client.pause()
        assert [len(core.running) for core in cores] == [3, 3]
        live = await engine.live_requests()
        assert [(each.id, each.num_choices) for each in live] == [("0", 2), ("1", 2), ("2", 2)]
        assert await engine.call("echo", 1) == (1,)
        await engine.abort("1")
        assert [len(core.running) for core in cores] == [2, 2]
        assert [o async for o in streams[1]][-1].outputs[0].finish_reason == "abort"
        for stream in (streams[0], streams[2]):
            await stream.aclose()
        assert not cores[0].running and not cores[1].running
        for label in "01":
            aborted = f'request_success_total{{model_name="fake",engine="{label}",finished_reason="abort"}} 3.0'
            assert aborted in engine.metrics.render().decode()
        for client in clients:
            client.resume()

    run_cores(test)


def test_the_queue_is_that_of_all_cores(run_cores):
    async def test(engine, cores, clients):
        engine.check_admission(2 * 3 + 4)
        with pytest.raises(Exception, match="currently busy"):
            engine.check_admission(2 * 3 + 5)

    run_cores(test, max_num_seqs=3, max_num_queued_reqs=4)


def test_seeds_do_not_depend_on_the_core(run_cores):
    async def test(engine, cores, clients):
        await asyncio.gather(*(collect(engine, str(i)) for i in range(4)), collect(engine, seed=5))
        seeds = {request.request_id: request.sampling_params.seed for core in cores for request in core.added}
        drawn = random.Random(7)
        expected = [drawn.getrandbits(64) - 2**63 for _ in range(4)]
        assert [seeds[name] for name in sorted(seeds)] == [*expected, 5]

    run_cores(test, seed=7)


def test_one_dead_core_ends_all(run_cores):
    async def test(engine, cores, clients):
        heard = []
        engine.on_death(heard.append)
        streams = [engine.generate("The", SamplingParams(max_tokens=50), str(i)) for i in range(4)]
        for stream in streams:
            await anext(stream)
        clients[1].die()
        for stream in streams:
            with pytest.raises(EngineDeadError):
                async for _ in stream:
                    pass
        assert len(heard) == 1
        with pytest.raises(EngineDeadError):
            await collect(engine)
        for core in cores:
            core.running.clear()

    run_cores(test)
