"""Nodes of one engine core: who is let in, and who is told why not."""

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import msgspec
import pytest
from fake_worker import make_config
from real_server import free_port

from minivllm.config.engine_config import EngineConfig
from minivllm.config.sections.parallel import ParallelConfig
from minivllm.errors import ConfigError
from minivllm.executor import node_process
from minivllm.executor.launch import BYE, Hello, Refused, Welcome
from minivllm.executor.nodes import Nodes, hello, linked
from minivllm.version import __version__

HOST = "127.0.0.2"


def node_config(rank: int, port: int, **parallel: object) -> EngineConfig:
    options = {"tensor_parallel_size": 3, "nnodes": 3, "master_addr": HOST, "master_port": port}
    options |= {"distributed_timeout_seconds": 30, **parallel}
    config = make_config(max_num_queued_reqs=rank)  # each may have its own
    model = dataclasses.replace(config.model, seed=None if rank else 7)
    return dataclasses.replace(config, model=model, parallel=ParallelConfig(node_rank=rank, **options))


def say(port: int, greeting: bytes) -> Connection:
    link = linked(socket.create_connection((HOST, port)))
    link.send_bytes(greeting)
    return link


def answer(link: Connection) -> object:
    return msgspec.msgpack.decode(link.recv_bytes(), type=Welcome | Refused)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def gathering(port: int) -> Iterator[tuple[threading.Thread, list[Nodes]]]:
    """Node 0 of three, which waits for the others."""
    found: list[Nodes] = []
    thread = threading.Thread(target=lambda: found.append(Nodes(node_config(0, port))), daemon=True)
    thread.start()
    while True:
        try:
            socket.create_connection((HOST, port)).close()
            break
        except ConnectionRefusedError:
            assert thread.is_alive()
    yield thread, found
    thread.join(10)
    assert not thread.is_alive()


def test_who_is_let_in(gathering: tuple[threading.Thread, list[Nodes]], port: int) -> None:
    thread, found = gathering
    with socket.create_connection((HOST, port), timeout=5) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.2\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    other = node_config(1, port, pipeline_parallel_size=3)
    other = dataclasses.replace(other, spec=dataclasses.replace(other.spec, vocab_size=51))
    same = "node 1 and node 0 need the same model and options, and differ: "
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(node_config(1, port)))
    for greeting, said in (
        (hello(other), same + "pipeline_parallel_size is 3 there and 1 here; vocab_size is 51 there and 50 here."),
        (msgspec.msgpack.encode(Hello(1, "0.0", plain)), f"node 1 has minivllm 0.0, and node 0 has {__version__}."),
        (msgspec.msgpack.encode(Hello(3, __version__, plain)), "there is no node 3: --nnodes is 3."),
    ):
        assert answer(say(port, greeting)) == Refused(said)
    say(port, hello(node_config(1, port))).close()  # it goes before the others are there
    again = say(port, hello(node_config(1, port)))
    twice = Refused("node 1 is there already: is --node-rank 1 given twice?")
    assert answer(say(port, hello(node_config(1, port)))) == twice
    second = say(port, hello(node_config(2, port)))
    assert answer(again) == answer(second) == Welcome(7)
    thread.join(10)
    with pytest.raises(ConnectionRefusedError):  # there is nothing more to hear
        socket.create_connection((HOST, port))
    assert sorted(found[0].names.values()) == ["Node 1 (127.0.0.1)", "Node 2 (127.0.0.1)"]
    found[0].send(b"plan")
    again.close()
    assert found[0].death() == "Node 1 (127.0.0.1) has gone."
    found[0].dismiss()
    assert [second.recv_bytes(), second.recv_bytes()] == [b"plan", BYE]


def test_nodes_that_do_not_come(port: int) -> None:
    said = rf"Waited 1 s \(--distributed-timeout-seconds\) in vain for nodes 1, 2 of 3 at {HOST}, port {port}\."
    with pytest.raises(ConfigError, match=said):
        Nodes(node_config(0, port, distributed_timeout_seconds=1))
    with pytest.raises(ConfigError, match=rf"in vain for node 0 at {HOST}, port {port}: .*refused"):
        node_process.run(node_config(1, port, distributed_timeout_seconds=1))
    with socket.create_server((HOST, port)), pytest.raises(ConfigError, match=f"--master-port {port} is in use"):
        Nodes(node_config(0, port))
    with pytest.raises(ConfigError, match=r"--master-addr 192\.0\.2\.1 is to be an address of node 0"):
        Nodes(node_config(0, port, master_addr="192.0.2.1"))
