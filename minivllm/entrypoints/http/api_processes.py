"""`ApiProcesses`: those beside the first one, which starts, watches and ends them. Used by `lifecycle`."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

import msgspec

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.config.engine_config import EngineConfig
from minivllm.config.sections.server import ServerConfig
from minivllm.engine.async_engine import AsyncLLMEngine, make_board
from minivllm.engine.balancer import start_cores
from minivllm.engine.launcher import CoreAddress, CoreProcess, exit_text
from minivllm.entrypoints.http.siblings import Siblings
from minivllm.errors import EngineDeadError
from minivllm.ipc.addresses import new_address, of_client, unix_path
from minivllm.ipc.frames import write_frame
from minivllm.utils.board import Board

MODULE = "minivllm.entrypoints.http.api_process"
STDERR = 2
READY = b"r"


class Seat(msgspec.Struct):
    """What a further API process needs to begin; the first one writes it to its stdin. The numbers are file descriptors."""

    index: int
    config: EngineConfig
    server: ServerConfig
    cores: list[CoreAddress]
    siblings: list[str]
    listener: int
    board: int
    report: int  # a pipe: `READY`, and closed when the process has ended


@dataclass(slots=True)
class _Process:
    index: int
    popen: "subprocess.Popen[bytes]"
    report: int
    is_ready: bool = False


class ApiProcesses:
    """After the frame with its `Seat`, each byte on a process's stdin is the number of a signal."""

    def __init__(self, seat: Seat):
        """`seat`: one like theirs."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # done when all of them are
        self._processes: list[_Process] = []
        self._on_death: Callable[[EngineDeadError], None] | None = None
        try:
            for index in range(1, len(seat.siblings)):
                self._processes.append(_start(seat, index))
        except BaseException:
            self.end(patience=0)
            raise

    @property
    def num_running(self) -> int:
        return sum(process.popen.poll() is None for process in self._processes)

    def watch(self, on_death: Callable[[EngineDeadError], None]) -> None:
        """`on_death` is called for each that ends before it is told to."""
        self._on_death = on_death
        for process in self._processes:
            asyncio.get_running_loop().add_reader(process.report, self._hear, process)

    def signal(self, number: int) -> None:
        """As if each had got this signal."""
        self._on_death = None
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):
                _stdin(process).write(bytes([number]))
                _stdin(process).flush()

    def end(self, patience: float) -> None:
        """They have `patience` seconds to leave by themselves."""
        self._on_death = None
        deadline = time.monotonic() + patience
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.0, deadline - time.monotonic()))
            process.popen.kill()
            process.popen.wait()
            with contextlib.suppress(BrokenPipeError):
                _stdin(process).close()
            if process.report >= 0:
                self._stop_hearing(process)

    def _hear(self, process: _Process) -> None:
        if os.read(process.report, 1) == READY:
            process.is_ready = True
            if all(each.is_ready for each in self._processes):
                self.ready.set_result(None)
            return
        self._stop_hearing(process)
        process.popen.wait()
        if self._on_death is not None:
            how = exit_text(process.popen)
            self._on_death(EngineDeadError(f"API process {process.index} (process {process.popen.pid}) {how}."))

    def _stop_hearing(self, process: _Process) -> None:
        asyncio.get_running_loop().remove_reader(process.report)
        os.close(process.report)
        process.report = -1


def start_all(args: AsyncEngineArgs, listener: socket.socket) -> tuple[AsyncLLMEngine, Siblings, ApiProcesses]:
    """Start the cores and the further API processes, and make what the first one has itself. Nothing here waits for them."""
    count, config = args.server.api_server_count, args.resolve()
    config = replace(config, parallel=replace(config.parallel, num_api_processes=count))
    cores = start_cores(config)
    board = make_board(config)
    first = new_address()
    paths = [unix_path(of_client(first, index)) for index in range(count)]
    try:
        others = ApiProcesses(_seat(args, config, cores, paths, listener, board))
    except BaseException:
        for core in cores:
            core.close(patience=0)
        raise
    try:
        return AsyncLLMEngine.from_config(config, cores, board), Siblings(0, paths), others
    except BaseException:
        others.end(patience=0)
        raise


def _seat(
    args: AsyncEngineArgs, config: EngineConfig, cores: Sequence[CoreProcess], paths: list[str], listener: socket.socket,
    board: Board,
) -> Seat:  # fmt: skip
    assert board.memory is not None
    return Seat(0, config, args.server, [core.address for core in cores], paths, listener.fileno(), board.memory, -1)


def _start(seat: Seat, index: int) -> _Process:
    ours, theirs = os.pipe()
    try:
        popen = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=STDERR,
            pass_fds=(seat.listener, seat.board, theirs),
        )
    finally:
        os.close(theirs)
    process = _Process(index, popen, ours)
    with contextlib.suppress(BrokenPipeError):  # it died already; its report is closed
        own = msgspec.structs.replace(seat, index=index, report=theirs)
        write_frame(_stdin(process), msgspec.msgpack.encode(own))
    return process


def _stdin(process: _Process) -> BinaryIO:
    return cast(BinaryIO, process.popen.stdin)
