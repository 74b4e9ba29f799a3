import asyncio

import pytest
from scripted_core import ScriptedClient, ScriptedCore, make_engine_config, make_tokenizer

from minivllm.engine.async_engine import AsyncLLMEngine
from minivllm.messages.output import EngineReady


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def core(tokenizer):
    return ScriptedCore(tokenizer)


@pytest.fixture
def run_engine(tokenizer, core):
    """`run_engine(test, **options)`: `await test(engine, client)` over the scripted core; nothing may be left afterwards."""

    def run(test, **options):
        async def main():
            client = ScriptedClient(core, EngineReady(100, 4, 64, 1))
            engine = AsyncLLMEngine(make_engine_config(tokenizer, **options), client, tokenizer)
            try:
                await test(engine, client)
                assert engine.num_running_requests == 0
                assert engine._outputs.num_sequences == 0
                assert not core.running
            finally:
                engine.shutdown()
            await asyncio.sleep(0)
            assert client.closed
            assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

        asyncio.run(main())

    return run
