"""What do clients see when a process of the server is killed, and is anything left of it? kill -9 in mid-stream, many times.

    python benchmarks/kill.py MODEL [--times 20] [--kinds api sibling core worker ray node] [-- --data-parallel-size 2 …]

Each time a server with the flags after -- is started (with `--nnodes 2` a second node, too), clients stream from it one
answer after another, and a process of that kind, drawn at random, is killed. Right is: within 5 s every client has an error
(an event in its stream, a status, or a broken connection), the server leaves with a status other than 0, and none of its
processes is there any more.
"""

import argparse
import contextlib
import http.client
import json
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from served import free_port, parse_with_flags, served

LIMIT = 5.0  # seconds
CLIENTS = 4
# A word on the command line of such a process.
KINDS = {
    "sibling": "minivllm.entrypoints.http.api_process",
    "core": "minivllm.core.process",
    "worker": "minivllm.executor.worker_process",
    "ray": "ray::RayWorker",
    "node": "minivllm.executor.node_process",
}


@dataclass
class Kill:
    """What came of one."""

    client_seconds: float
    gone_seconds: float  # until no process was left
    status: int
    ends: list[str]


class Reader(threading.Thread):
    """Streams answers until something is wrong; `end` says what."""

    def __init__(self, port: int):
        super().__init__(daemon=True)
        self.port, self.end, self.end_time = port, "", 0.0
        self.streaming = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self.end:
                self.read_answer()
        except (OSError, http.client.HTTPException) as error:
            self.end = type(error).__name__
        self.end_time = time.monotonic()

    def read_answer(self) -> None:
        body = {"prompt": "Count:", "max_tokens": 200, "ignore_eos": True, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            if reply.status != 200:
                self.end = f"status {reply.status}"
                return
            last = b""
            for line in reply:
                if line.startswith(b"data: {"):
                    self.streaming.set()
                    last = line
            if b'"error"' in last:
                self.end = f"error event {json.loads(last[6:])['error']['code']}"


@contextlib.contextmanager
def second_node(model: str, flags: list[str]) -> Iterator[list[subprocess.Popen]]:
    """None unless the flags say so; they get a port for both."""
    if "--nnodes" not in flags:
        yield []
        return
    flags += ["--master-port", str(free_port())]
    command = [sys.executable, "-m", "minivllm", "serve", model, *flags, "--headless", "--node-rank", "1"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as node:
        try:
            yield [node]
        finally:
            node.kill()


def find(family: list[psutil.Process], kind: str) -> psutil.Process:
    if kind == "api":
        return family[0]
    found = [p for p in family if KINDS[kind] in " ".join(p.cmdline())]
    if not found:
        sys.exit(f"this server has no process of the kind {kind}")
    return random.choice(found)


def kill_once(model: str, flags: list[str], kind: str) -> Kill:
    flags = list(flags)
    with second_node(model, flags) as nodes, served(model, *flags) as (server, port, _):
        readers = [Reader(port) for _ in range(CLIENTS)]
        for reader in readers:
            if not reader.streaming.wait(60):
                sys.exit(f"no stream began: {reader.end}")
        time.sleep(random.uniform(0, 0.3))
        roots = [psutil.Process(process.pid) for process in (server, *nodes)]
        family = [process for root in roots for process in (root, *root.children(recursive=True))]
        victim = find(family, kind)
        began = time.monotonic()
        victim.send_signal(signal.SIGKILL)
        for reader in readers:
            reader.join(60)
        status = min(map(abs, [process.wait(60) for process in (server, *nodes)]))
        while any(is_left(p) for p in family) and time.monotonic() < began + 60:
            time.sleep(0.02)
        gone = time.monotonic()
        return Kill(max(r.end_time for r in readers) - began, gone - began, status, [r.end or "nothing" for r in readers])


def is_left(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", type=Path)
    ap.add_argument("--times", type=int, default=20)
    ap.add_argument("--kinds", nargs="+", choices=("api", *KINDS), default=["api", "core"])
    args, flags = parse_with_flags(ap)
    wrong = 0
    for kind in args.kinds:
        kills = [kill_once(str(args.model), flags, kind) for _ in range(args.times)]
        bad = [k for k in kills if k.client_seconds > LIMIT or k.gone_seconds > LIMIT or k.status == 0 or "nothing" in k.ends]
        wrong += len(bad)
        for name in ("client_seconds", "gone_seconds"):
            seconds = [getattr(k, name) for k in kills]
            print(f"{kind:7} {name:15} median {statistics.median(seconds):.2f}  longest {max(seconds):.2f}")
        print(f"{kind:7} clients saw {dict(Counter(end for k in kills for end in k.ends))}")
        print(f"{kind:7} exit status {dict(Counter(k.status for k in kills))}; {len(kills) - len(bad)} of {len(kills)} right")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
