"""What does a streamed chunk cost the API process? CPU microseconds a chunk, over real connections, engine excluded.

python benchmarks/sse.py [--streams 32] [--chunks 1000] [--path /v1/completions]
"""

import argparse
import asyncio
import multiprocessing
import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import uvicorn
import uvloop
from served import read_stream  # of this folder, not of the tests

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fakes import Client, FakeEngine

from minivllm.messages.output import CompletionOutput, RequestOutput


class Steps(FakeEngine):
    """Gives all streams a chunk at each step, as the engine's pump does; waits for the readers in between."""

    num_chunks = 0

    async def generate(self, prompt, sampling_params, request_id, *, priority=0, arrival_time=None):
        ids = prompt["prompt_token_ids"]
        for number in range(self.num_chunks):
            await asyncio.sleep(0)
            choice = CompletionOutput(0, " word", [5], finish_reason="length" if number == self.num_chunks - 1 else None)
            yield RequestOutput(request_id, None, ids, None, [choice], choice.finished())


def serve(pipe: Connection, num_chunks: int) -> None:
    """Serve in this process; for each message, tell the CPU seconds used so far."""

    async def main() -> None:
        engine = Steps(max_model_len=10**6)
        engine.num_chunks = num_chunks
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        config = uvicorn.Config(Client(engine).app, http="httptools", ws="none", lifespan="off", log_level="warning")
        server = uvicorn.Server(config)
        asyncio.get_running_loop().add_reader(pipe.fileno(), lambda: (pipe.recv(), pipe.send(time.process_time())))
        pipe.send(listener.getsockname()[1])
        await server.serve([listener])

    uvloop.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--chunks", type=int, default=1000)
    parser.add_argument("--path", default="/v1/chat/completions")
    args = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, args.chunks), daemon=True)
    server.start()
    port = ours.recv()

    body = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "stream": True, "max_tokens": 10**5}

    async def round_() -> int:
        return sum(await asyncio.gather(*(read_stream(port, args.path, body) for _ in range(args.streams))))

    def cpu_seconds() -> float:
        ours.send(None)
        return float(ours.recv())

    uvloop.run(round_())  # warm up
    for _ in range(3):
        before, began = cpu_seconds(), time.perf_counter()
        count = uvloop.run(round_())
        used, wall = cpu_seconds() - before, time.perf_counter() - began
        print(f"{count} chunks: {used / count * 1e6:.1f} us CPU a chunk, {count / wall:,.0f} chunks/s")
    server.kill()


if __name__ == "__main__":
    main()
