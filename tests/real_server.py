"""`minivllm serve` in a process of its own, and fixtures that start it, for the tests that need the real thing."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest


@dataclass
class Server:
    """A running `minivllm serve`."""

    process: subprocess.Popen
    url: str
    log: Path

    def get(self, path: str, timeout: float = 10) -> tuple[int, str]:
        """(status, text) of a GET; status 0 if nothing answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=timeout) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)

    def metric(self, name: str) -> float:
        """Sum over all label sets of one sample name in /metrics."""
        lines = self.get("/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def children(self) -> list[int]:
        """Process ids of all descendants."""
        found, todo = [], [self.process.pid]
        while todo:
            for task in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    todo += (new := [int(pid) for pid in task.read_text().split()])
                    found += new
        return found

    def stop(self, timeout: float = 20) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Options of `LLM` as flags of `minivllm serve`."""
    flags: list[str] = []
    for name, value in options.items():
        flags += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
    return flags


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., contextlib.AbstractContextManager[Server]]:
    """`with launch(model, "--flag", …) as server:` a ready server that is stopped, and checked for orphans, at the end."""

    @contextlib.contextmanager
    def started(model: Path | str, *flags: str, ready: bool = True, env: dict[str, str] | None = None) -> Iterator[Server]:
        port = free_port()
        log = tmp_path_factory.mktemp("server") / "log.txt"
        command = [sys.executable, "-m", "minivllm", "serve", str(model), "--host", "127.0.0.1", "--port", str(port), *flags]
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, env=os.environ | (env or {}))
        server = Server(process, f"http://127.0.0.1:{port}", log)
        try:
            if ready:
                wait_until(lambda: server.get("/health")[0] == 200 or process.poll() is not None, 90, "a ready server")
                assert process.poll() is None, log.read_text()
            family = server.children()
            yield server
            family = server.children() or family
        finally:
            server.stop()
        wait_until(lambda: not any(alive(pid) for pid in family), 5, f"all of {family} gone")

    return started


@pytest.fixture(scope="session")
def server(launch: Callable[..., contextlib.AbstractContextManager[Server]], smollm2: Path) -> Iterator[Server]:
    """One server with the demo model for all tests that only send requests."""
    with launch(smollm2, "--served-model-name", "smollm2", "--enable-request-id-headers") as running:
        yield running
