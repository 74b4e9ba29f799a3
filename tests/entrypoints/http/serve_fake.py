"""`run_server` on a `FakeEngine`: python serve_fake.py '{"delay": 0.1}' [server flags]. SIGUSR1 kills the engine."""

import argparse
import asyncio
import json
import signal
import sys

import fakes
import uvloop

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.entrypoints.http import lifecycle
from minivllm.errors import MinivllmError


class SlowStart(fakes.FakeEngine):
    options: dict = {}

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs) -> "SlowStart":
        print("engine started", file=sys.stderr, flush=True)
        return cls(**cls.options)

    async def start(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.die)
        await asyncio.sleep(load_seconds)

    def shutdown(self) -> None:
        print(f"engine shut down, {len(self.aborted)} aborted", file=sys.stderr, flush=True)


if __name__ == "__main__":
    SlowStart.options = json.loads(sys.argv[1])
    load_seconds = SlowStart.options.pop("load_seconds", 0.0)
    parser = argparse.ArgumentParser()
    AsyncEngineArgs.add_cli_args(parser)
    lifecycle.AsyncLLMEngine = SlowStart  # type: ignore[misc]
    try:
        uvloop.run(lifecycle.run_server(AsyncEngineArgs.from_cli_args(parser.parse_args(sys.argv[2:]))))
    except MinivllmError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
