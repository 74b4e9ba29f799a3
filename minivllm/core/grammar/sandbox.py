"""`Sandbox`: a checker process and the way to it. Held by `manager`, one for each of its threads."""

import contextlib
import subprocess
import sys
from typing import BinaryIO, cast

import msgspec

from minivllm.core.grammar.checker import Job, Verdict
from minivllm.ipc.frames import read_frame, write_frame
from minivllm.messages.structured_outputs import StructuredOutputsParams


class Sandbox:
    """The process starts with the first check, and again after one that ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, params: StructuredOutputsParams, special_ids: dict[str, int]) -> str:
        """The grammar of what compiles; ValueError if it does not. Blocks, but the checker bounds its own time."""
        process = self._process or self._start()
        try:
            write_frame(cast(BinaryIO, process.stdin), msgspec.msgpack.encode(Job(params, special_ids)))
            verdict = msgspec.msgpack.decode(read_frame(cast(BinaryIO, process.stdout)), type=Verdict)
        except (EOFError, BrokenPipeError) as error:
            self.close()
            self._start()  # by the time that the next one comes it is ready
            raise ValueError("it takes too much time or memory to compile") from error
        if verdict.error is not None:
            raise ValueError(verdict.error)
        return verdict.grammar

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "minivllm.core.grammar.checker"]
        # A session of its own: Ctrl-C is not meant for it. It ends when its stdin closes.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        return self._process

    def close(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                cast(BinaryIO, pipe).close()
        process.kill()
        process.wait()
