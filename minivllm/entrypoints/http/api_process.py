"""Main of a further API process: `python -m minivllm.entrypoints.http.api_process`, started by `api_processes`.

It serves the same address with the same cores as the first one, in which Ctrl-C, SIGTERM and errors are dealt with.
"""

import asyncio
import os
import socket
import sys
from typing import BinaryIO, cast

import msgspec
import uvloop

from minivllm.config.env import logging_level
from minivllm.engine.async_engine import AsyncLLMEngine, make_board
from minivllm.engine.launcher import CoreLink
from minivllm.entrypoints.http.api_processes import READY, Seat
from minivllm.entrypoints.http.lifecycle import Lifecycle
from minivllm.entrypoints.http.siblings import Siblings
from minivllm.errors import MinivllmError
from minivllm.ipc.child import exit_with_parent, leave_signals_to_parent
from minivllm.ipc.frames import read_frame
from minivllm.utils.logging import only_warnings, set_level


def main() -> None:
    leave_signals_to_parent()
    set_level(logging_level())
    only_warnings()
    try:
        # Unbuffered, so that nothing is read that comes later.
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as pipe:
            seat = msgspec.msgpack.decode(read_frame(cast(BinaryIO, pipe)), type=Seat)
        uvloop.run(_serve(seat))
    except (EOFError, MinivllmError):  # the parent has gone, or says it
        sys.exit(1)


async def _serve(seat: Seat) -> None:
    loop = asyncio.get_running_loop()
    listener = socket.socket(fileno=seat.listener)
    listener.setblocking(False)
    lifecycle = Lifecycle(seat.server, listener, lambda engine: os.write(seat.report, READY))
    exit_with_parent(lambda number: loop.call_soon_threadsafe(lifecycle.on_signal, number))
    cores = [CoreLink(address, seat.index) for address in seat.cores]
    siblings = Siblings(seat.index, seat.siblings)
    board = make_board(seat.config, seat.index, seat.board)
    await lifecycle.run(AsyncLLMEngine.from_config(seat.config, cores, board), siblings)


if __name__ == "__main__":
    main()
