"""A real core process with a tiny random model: streams, abort, death, failed starts, and nothing left behind."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from scripted_core import write_tiny_model

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.engine.async_engine import AsyncLLMEngine
from minivllm.errors import ConfigError, EngineDeadError
from minivllm.messages.sampling_params import OutputKind, SamplingParams

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory, tokenizer):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), tokenizer)


@pytest.fixture
def make_engine(tiny_model):
    def make(**options) -> AsyncLLMEngine:
        given = {"load_format": "dummy", "dtype": "float32", "cpu_threads": 1, "num_gpu_blocks_override": 64, **options}
        return AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(tiny_model), **given))

    return make


@pytest.fixture(autouse=True)
def nothing_is_left():
    def traces() -> dict[str, object]:
        children = {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}
        return {"threads": threading.active_count(), "files": len(os.listdir("/proc/self/fd")), "children": children}

    before = traces()
    yield
    deadline = time.monotonic() + 5
    while (after := traces()) != before and time.monotonic() < deadline:
        time.sleep(0.05)  # zmq closes its sockets in its own thread
    assert after == before  # no new child, not even a dead one


async def num_tokens(engine, request_id, max_tokens=20, **options):
    params = SamplingParams(max_tokens=max_tokens, output_kind=OutputKind.DELTA, ignore_eos=True, **options)
    return sum([len(o.outputs[0].token_ids) async for o in engine.generate("The capital", params, request_id)])


def test_life_and_sudden_death(make_engine):
    async def main():
        engine = make_engine()
        try:
            assert await asyncio.gather(*(num_tokens(engine, str(i), 5 + i) for i in range(8))) == list(range(5, 13))

            stream = engine.generate("The", SamplingParams(max_tokens=400, ignore_eos=True), "gone")
            await anext(stream)
            await stream.aclose()
            await num_tokens(engine, "next", 2)
            num_running, num_waiting, usage = (await engine.call("stats"))[:3]
            assert (num_running, num_waiting, usage) == (0, 0, 0.0)

            heard = asyncio.get_running_loop().create_future()
            engine.on_death(heard.set_result)
            streams = [engine.generate("The", SamplingParams(max_tokens=500, ignore_eos=True), str(i)) for i in range(4)]
            for each in streams:
                await anext(each)
            os.kill(engine._client._process.pid, signal.SIGKILL)
            begin = time.monotonic()
            results = await asyncio.gather(*(drain(each) for each in streams), return_exceptions=True)
            assert time.monotonic() - begin < 5
            assert [type(result) for result in results] == [EngineDeadError] * 4
            assert "killed by signal 9" in str(await heard)
            assert engine.dead_error is not None and engine.num_running_requests == 0
            with pytest.raises(EngineDeadError):
                await num_tokens(engine, "late")
            with pytest.raises(EngineDeadError):
                await engine.call("stats")
        finally:
            engine.shutdown()

    async def drain(stream):
        async for _ in stream:
            pass

    asyncio.run(main())


def test_start_with_a_config_that_cannot_work(make_engine):
    async def main():
        engine = make_engine(num_gpu_blocks_override=None, kv_cache_memory_bytes=1)
        try:
            with pytest.raises(ConfigError, match="max_model_len=512"):
                await engine.start()
        finally:
            engine.shutdown()

    asyncio.run(main())


def test_death_during_start_and_shutdown_at_once(make_engine):
    async def main():
        engine = make_engine()
        os.kill(engine._client._process.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="killed by signal 9"):
            await engine.start()
        engine.shutdown()
        engine.shutdown()

    asyncio.run(main())
    make_engine().shutdown()  # before anything ran
