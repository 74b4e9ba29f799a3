"""Cases in processes of their own: one that raises, crashes, hangs or breaks the device costs the others nothing.

A program that has cases starts itself again as their server, `program.py … --serve 7`, and asks for one case after another.
"""

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

Reply = dict[str, Any]  # what the case gives, and "seconds"; "error" in place of it
PROCESSES = max(1, min(12, (os.cpu_count() or 1) * 3 // 4))  # that compile, which is most of the work
_FIRST_SECONDS = 120.0  # to start a server, beside the time of its first case
_EXIT_SECONDS = 5.0
_LAST_WORDS = 1500  # characters of a server that died


def serve(descriptor: int, run: Callable[[str], Reply]) -> None:
    """Answer on the pipe, a line for each name that comes in by stdin."""
    with os.fdopen(descriptor, "w") as replies:
        for line in sys.stdin:
            began, broken = time.monotonic(), False
            try:
                reply = run(line.rstrip("\n"))
                _settle_device()
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
                traceback.print_exc()
                broken = not _device_works()
            # After an illegal access, say, nothing works any more in this process.
            replies.write(json.dumps({**reply, "seconds": time.monotonic() - began, "broken": broken}) + "\n")
            replies.flush()


def _settle_device() -> None:
    """What is kept for later is given back: others compute on the same device."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _device_works() -> bool:
    try:
        _settle_device()
    except Exception:
        return False
    return True


class _Server:
    def __init__(self, command: Sequence[str]):
        receiving, sending = os.pipe()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._process = subprocess.Popen(
            [*command, "--serve", str(sending)], stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, pass_fds=(sending,)
        )
        os.close(sending)
        self._replies = os.fdopen(receiving)
        self._asked = False

    def ask(self, name: str, seconds: float, left: float) -> Reply | None:
        """None if it does not answer: then this one is of no more use. left: seconds that even the first answer may take."""
        assert self._process.stdin is not None
        limit = min(left, seconds if self._asked else seconds + _FIRST_SECONDS)
        self._asked = True
        try:
            self._process.stdin.write(f"{name}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self._replies.readline() if select.select([self._replies], [], [], limit)[0] else ""
        return json.loads(line) if line else None

    def end(self) -> str:
        """How it ends, if it does by itself, and its last words."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            how = f"died with {self._process.wait(_EXIT_SECONDS)}"
        except subprocess.TimeoutExpired:
            how = "gave no answer in time"
            self._process.kill()
            self._process.wait()
        self._replies.close()
        self._log.seek(0)
        words = self._log.read().decode(errors="replace")[-_LAST_WORDS:]
        self._log.close()
        return f"{how}: {words}"


def _ask(
    server: _Server | None, command: Sequence[str], name: str, seconds: float, until: float
) -> tuple[_Server | None, Reply]:
    """The reply, and the server if it can be asked again."""
    began = time.monotonic()
    if began >= until:
        return server, {"error": "not tried: out of time", "seconds": 0.0}
    try:
        server = server or _Server(command)
        reply = server.ask(name, seconds, until - began)
    except OSError as error:  # no process, or no more pipes
        return None, {"error": str(error), "seconds": time.monotonic() - began}
    if reply is None:
        return None, {"error": server.end(), "seconds": time.monotonic() - began}
    if reply.pop("broken"):
        server.end()
        return None, reply
    return server, reply


def ask_all(
    command: Sequence[str], names: Sequence[str], *, servers: int, seconds: float, until: float
) -> Iterator[tuple[str, Reply]]:
    """Of each case its name and reply, as they come. seconds: that one may take; until: monotonic time when all must end."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, Reply]] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)

    def work() -> None:
        server: _Server | None = None
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                break
            server, reply = _ask(server, command, name, seconds, until)
            done.put((name, reply))
        if server is not None:
            server.end()

    for _ in range(max(1, min(servers, len(names)))):
        threading.Thread(target=work, daemon=True).start()
    for _ in names:
        yield done.get()


class Notes:
    """A line of JSON for each finding, in a file under $OUT, if that is set."""

    def __init__(self, name: str):
        folder = os.environ.get("OUT")
        self._file = (Path(folder) / name).open("w", encoding="utf-8") if folder else None

    def add(self, **finding: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(finding) + "\n")
            self._file.flush()
