"""The core with `FakeWorker` in the place of the real one, in this process (`startup`) or in another (`fake_core`)."""

import importlib
import os
import subprocess
import sys
import types
from pathlib import Path

import msgspec
import pytest
import zmq
from fake_worker import FakeWorker, make_config

from minivllm.ipc.addresses import new_address
from minivllm.ipc.codec import decode_output, encode
from minivllm.ipc.frames import write_frame
from minivllm.ipc.sockets import bind
from minivllm.messages.output import TokenOutputs

MAIN = """
import sys, types
import fake_worker

class Worker(fake_worker.FakeWorker):
{body}

module = types.ModuleType("minivllm.worker.worker")
module.Worker = Worker
sys.modules[module.__name__] = module
from minivllm.core import process
process.main(sys.argv[1:])
"""
TESTS = Path(__file__).parent.parent


@pytest.fixture
def startup(monkeypatch):
    """minivllm.core.startup, imported anew over a fake worker module; `startup.workers` are the workers made."""
    workers = []

    def worker(config):
        workers.append(FakeWorker(config))
        return workers[-1]

    fake = types.ModuleType("minivllm.worker.worker")
    fake.Worker = worker
    monkeypatch.setitem(sys.modules, "minivllm.worker.worker", fake)
    for name in ("minivllm.executor.uniproc", "minivllm.core.startup"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("minivllm.core.startup")
    module.workers = workers
    yield module
    for name in ("minivllm.executor.uniproc", "minivllm.core.startup"):
        sys.modules.pop(name, None)


class CoreUnderTest:
    """A core process and our ends of its sockets."""

    def __init__(self, body: str, config, send_config: bool = True):
        self.context = zmq.Context()
        addresses = new_address(), new_address()
        self.inbox = bind(self.context, zmq.PUSH, addresses[0])
        self.outbox = bind(self.context, zmq.PULL, addresses[1])
        code = MAIN.format(body="\n".join(f"    {line}" for line in body.splitlines()))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
        command = [sys.executable, "-c", code, *addresses]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        if send_config:
            write_frame(self.process.stdin, msgspec.msgpack.encode(config))

    def send(self, message):
        self.inbox.send(encode(message))

    def receive(self, kind=None, seconds=60):
        """The next message (of this type; only token outputs may come before it)."""
        while True:
            assert self.outbox.poll(seconds * 1000), "the core said nothing"
            message = decode_output(self.outbox.recv())
            if kind is None or isinstance(message, kind):
                return message
            assert isinstance(message, TokenOutputs), message

    def wait(self):
        """Its exit status and what it wrote to stderr, once it has ended."""
        try:
            return self.process.wait(20), self.process.stderr.read().decode()
        finally:
            self.process.stderr.close()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stderr.close()
        self.context.destroy(linger=0)


@pytest.fixture
def fake_core():
    """Starts core processes: fake_core(body of the Worker class, **config options)."""
    started = []

    def start(body="pass", send_config=True, **options):
        started.append(CoreUnderTest(body, make_config(**options), send_config))
        return started[-1]

    yield start
    for core in started:
        core.close()
