"""A `minivllm serve` process for the benchmarks of this folder: start, wait, memory of the whole process tree, stop."""

import argparse
import asyncio
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def parse_with_flags(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """The arguments of this program, and behind `--` the flags of the server."""
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    return parser.parse_args(words[:split]), words[split + 1 :]


def post(port: int, path: str, body: dict, timeout: float = 120) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {text[:200]!r}")
        return json.loads(text)
    finally:
        connection.close()


async def read_stream(port: int, path: str, body: dict) -> int:
    """Number of events of one stream; reads as cheaply as it can."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    count = 0
    while data := await reader.read(1 << 16):
        count += data.count(b"data: ")
    writer.close()
    return count


def tree(root: int) -> list[int]:
    """Process ids of `root` and everything below it."""
    found, todo = [], [root]
    while todo:
        found.append(pid := todo.pop())
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                todo += [int(child) for child in task.read_text().split()]
    return found


def memory_mib(root: int, fields: Sequence[str] = ("Pss:",)) -> float:
    """Memory of a process tree in MiB: every resident page counted once, or the named fields of smaps_rollup."""
    total = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith(tuple(fields)))
    return total / 1024


@contextlib.contextmanager
def served(*arguments: str) -> Iterator[tuple[subprocess.Popen, int, float]]:
    """(process, port, seconds until the first answered request) of a server that is stopped at the end."""
    port = free_port()
    command = [sys.executable, "-m", "minivllm", "serve", *arguments, "--host", "127.0.0.1", "--port", str(port)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while True:
            try:
                post(port, "/v1/completions", {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0})
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(process.stderr.read()) from None  # type: ignore[union-attr]
                time.sleep(0.005)
        yield process, port, time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
