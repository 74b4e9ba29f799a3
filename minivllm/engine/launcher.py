"""`CoreProcess`: an engine-core process and its config, brought together. Made by `balancer.launch` as early as possible.

`CoreLink`: the same core as further API processes see it.
"""

import contextlib
import os
import subprocess
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import msgspec
import zmq

from minivllm.config.engine_config import EngineConfig
from minivllm.engine import spawn
from minivllm.ipc.addresses import of_client
from minivllm.ipc.child import FAREWELL
from minivllm.ipc.frames import write_frame
from minivllm.ipc.sockets import bind

EXIT_SECONDS = 3.0  # given to a core to leave by itself before it is killed

Socket = zmq.Socket[bytes]


class CoreAddress(NamedTuple):
    """All that a further API process needs to know of a core."""

    name: str
    pid: int
    input_address: str
    output_address: str


class Core(Protocol):
    """A core process, as `ProcessClient` needs it."""

    name: str
    pid: int
    inbox: Socket  # what we send
    outbox: Socket  # what comes back

    def open_pidfd(self) -> int | None:
        """A file descriptor that becomes readable when the process ends; None where the system has none."""

    def exit_text(self) -> str | None:
        """How the process ended, or None while it runs."""

    def close(self, patience: float = EXIT_SECONDS) -> None:
        """May be called twice."""


class CoreProcess:
    """A running core: its process, and our ends of the two sockets. It connects by itself, before or after we bind."""

    def __init__(self, config: EngineConfig):
        """Takes the process that was started already, or starts one. Nothing here waits for it."""
        parallel = config.parallel
        self.name = "engine core" if parallel.data_parallel_size == 1 else f"engine core {parallel.data_parallel_rank}"
        self._popen, *addresses = spawn.take()
        self.pid = self._popen.pid
        self.address = CoreAddress(self.name, self.pid, *addresses)
        self._context, self.inbox, self.outbox = _bind_sockets(self.address, client=0)
        self._stdin = cast(BinaryIO, self._popen.stdin)
        with contextlib.suppress(BrokenPipeError):  # it died already; whoever watches the process will say how
            write_frame(self._stdin, msgspec.msgpack.encode(config))

    def open_pidfd(self) -> int | None:
        return _open_pidfd(self.pid)

    def exit_text(self) -> str | None:
        return exit_text(self._popen)

    def close(self, patience: float = EXIT_SECONDS) -> None:
        """End the process and reap it: it leaves when its stdin closes, or is killed. May be called twice."""
        with contextlib.suppress(BrokenPipeError):
            if not self._stdin.closed:
                self._stdin.write(FAREWELL)
            self._stdin.close()
        try:
            self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._context.destroy(linger=0)


class CoreLink:
    """A core that another API process has started, and will end."""

    def __init__(self, address: CoreAddress, client: int):
        self.name = address.name
        self.pid = address.pid
        self._context, self.inbox, self.outbox = _bind_sockets(address, client)

    def open_pidfd(self) -> int | None:
        try:
            return _open_pidfd(self.pid)
        except ProcessLookupError:  # polling will find that, too
            return None

    def exit_text(self) -> str | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "has ended"
        return None

    def close(self, patience: float = EXIT_SECONDS) -> None:
        self._context.destroy(linger=0)


def exit_text(popen: "subprocess.Popen[bytes]") -> str | None:
    """How a process ended, or None while it runs."""
    code = popen.poll()
    if code is None:
        return None
    return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"


def _bind_sockets(address: CoreAddress, client: int) -> tuple["zmq.Context[Socket]", Socket, Socket]:
    context: zmq.Context[Socket] = zmq.Context()
    inbox = bind(context, zmq.PUSH, of_client(address.input_address, client))
    return context, inbox, bind(context, zmq.PULL, of_client(address.output_address, client))


def _open_pidfd(pid: int) -> int | None:
    opener: Any = getattr(os, "pidfd_open", None)
    return None if opener is None else opener(pid)
