"""`CoreProcess`: an engine-core process and its config, brought together. Made by `balancer.launch` as early as possible."""

import contextlib
import os
import subprocess
from typing import Any, BinaryIO, cast

import msgspec
import zmq

from minivllm.config.engine_config import EngineConfig
from minivllm.engine import spawn
from minivllm.ipc.child import FAREWELL
from minivllm.ipc.frames import write_frame
from minivllm.ipc.sockets import bind

EXIT_SECONDS = 3.0  # given to a core to leave by itself before it is killed


class CoreProcess:
    """A running core: its process, and our ends of the two sockets. It connects by itself, before or after we bind."""

    def __init__(self, config: EngineConfig):
        """Takes the process that was started already, or starts one. Nothing here waits for it."""
        parallel = config.parallel
        self.name = "engine core" if parallel.data_parallel_size == 1 else f"engine core {parallel.data_parallel_rank}"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._popen, input_address, output_address = spawn.take()
        self.inbox: zmq.Socket[bytes] = bind(self._context, zmq.PUSH, input_address)  # what we send
        self.outbox: zmq.Socket[bytes] = bind(self._context, zmq.PULL, output_address)  # what comes back
        self.pid = self._popen.pid
        self._stdin = cast(BinaryIO, self._popen.stdin)
        with contextlib.suppress(BrokenPipeError):  # it died already; whoever watches the process will say how
            write_frame(self._stdin, msgspec.msgpack.encode(config))

    def open_pidfd(self) -> int | None:
        """A file descriptor that becomes readable when the process ends; None where the system has none."""
        opener: Any = getattr(os, "pidfd_open", None)
        return None if opener is None else opener(self.pid)

    def exit_text(self) -> str | None:
        """How the process ended, or None while it runs."""
        code = self._popen.poll()
        if code is None:
            return None
        return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"

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
