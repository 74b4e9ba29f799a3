"""`Nodes`: the other machines of an engine core, as the executor on node 0 sees them, and how they come together.

A node is a TCP connection with length-prefixed messages (`multiprocessing.connection`): there go those to the workers, back
come their replies. Nothing is pickled, and who does not begin with the `Hello` of a node that is missing is heard no further.
Nobody listens any more when all are there. A connection that ends tells that its process has: the system closes it.
"""

import contextlib
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any, TypeAlias

import msgspec

from minivllm.config.engine_config import EngineConfig
from minivllm.config.sections.parallel import ParallelConfig
from minivllm.errors import ConfigError
from minivllm.executor.launch import BYE, DEAD, Hello, Refused, Welcome
from minivllm.ipc import child
from minivllm.utils.logging import get_logger
from minivllm.version import __version__

logger = get_logger(__name__)

Link: TypeAlias = "Connection[Any, Any]"

REMIND_SECONDS = 10.0  # between lines that say who is waited for
MAX_GREETING = 1 << 20  # bytes
_HELLO_SECONDS = 2.0  # from the first byte to the last
_LAST_WORDS_SECONDS = 0.5  # a node needs some to find out how a worker of its own died
_FAREWELL_SECONDS = 1.0
# A machine that is cut off is known to be gone after 5 + 5 · 2 seconds, or when what was sent had no answer for as long.
_TCP = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 5, "TCP_USER_TIMEOUT": 15_000}
# In these the nodes may differ: what each has of its own, and what means nothing to workers.
_OWN = {
    "model", "path", "tokenizer", "served_model_name", "dense", "seed", "cpu_threads", "gpu_memory_utilization",
    "kv_cache_memory_bytes", "node_rank", "headless", "master_addr", "distributed_timeout_seconds", "max_num_queued_reqs",
    "disable_log_stats", "disable_log_requests", "num_api_processes",
}  # fmt: skip

_encode = msgspec.msgpack.Encoder().encode


class Nodes:
    """None if there is but one."""

    names: dict[Link, str]  # of the nodes there are, by the connections with them

    def __init__(self, config: EngineConfig):
        """Waits for all of them. ConfigError if the address cannot be had, or one does not come in time."""
        self.names = {}
        self._lock = threading.Lock()  # for what is sent: goodbye is said by a thread of its own
        if config.parallel.nnodes > 1:
            self.names = _gather(config)
            self.send(_encode(Welcome(config.model.seed or 0)))
            child.when_parent_leaves(self._say_goodbye)

    def send(self, message: bytes) -> None:
        """To each. One that is gone is not told."""
        with self._lock:
            for link in self.names:
                with contextlib.suppress(OSError):
                    link.send_bytes(message)

    def death(self) -> str | None:
        """The cause, if something went wrong on a node that it can tell; or that the node is gone."""
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while ready := wait_for(list(self.names), max(0.0, deadline - time.monotonic())):
            for link in ready:
                assert isinstance(link, Connection)
                try:
                    reply = link.recv_bytes()
                except (EOFError, OSError):
                    return f"{self.names[link]} has gone."
                if reply[:1] == DEAD:
                    return reply[1:].decode()
        return None

    def dismiss(self) -> None:
        """Let them end, and know that all is well. May be called twice."""
        self._say_goodbye()
        self.close()

    def close(self) -> None:
        """They end by themselves, as after a failure. May be called twice."""
        for link in self.names:
            link.close()
        self.names = {}

    def _say_goodbye(self) -> None:
        if self._lock.acquire(timeout=_FAREWELL_SECONDS):  # else a node that is stuck holds it
            self._lock.release()
            self.send(BYE)


def hello(config: EngineConfig) -> bytes:
    return _encode(Hello(config.parallel.node_rank, __version__, _plain(config)))


def linked(sock: socket.socket) -> Link:
    """One end of a connection between nodes."""
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(sock.detach())


def _gather(config: EngineConfig) -> dict[Link, str]:
    parallel, gathering = config.parallel, _Gathering(config)
    if parallel.node_rank != 0:
        raise ConfigError("--headless is for `minivllm serve`: nothing else runs on other nodes than 0.", param="headless")
    remind, deadline = time.monotonic(), time.monotonic() + parallel.distributed_timeout_seconds
    with _listen(parallel) as listener, gathering:
        while missing := gathering.missing():
            now = time.monotonic()
            text = f"node{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of {parallel.nnodes}"
            where = f"{parallel.master_addr}, port {parallel.master_port}"
            if now >= deadline:
                seconds = parallel.distributed_timeout_seconds
                raise ConfigError(
                    f"Waited {seconds} s (--distributed-timeout-seconds) in vain for {text} at {where}.", param="nnodes"
                )
            if now >= remind:
                logger.info("Waiting for %s at %s", text, where)
                remind = now + REMIND_SECONDS
            gathering.look(listener, min(deadline, remind) - now)
        return gathering.take()


class _Gathering:
    def __init__(self, config: EngineConfig):
        self._config = config
        self._hosts: dict[Link, str] = {}  # of all connections
        self._joined: dict[Link, int] = {}  # and their ranks

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        for link in list(self._hosts):
            self._drop(link)

    def missing(self) -> list[int]:
        return sorted(set(range(1, self._config.parallel.nnodes)) - set(self._joined.values()))

    def take(self) -> dict[Link, str]:
        """The connections are the caller's now."""
        return {link: f"Node {rank} ({self._hosts.pop(link)})" for link, rank in self._joined.items()}

    def look(self, listener: socket.socket, timeout: float) -> None:
        for source in wait_for([listener, *self._hosts], timeout):
            if isinstance(source, socket.socket):
                sock, (host, *_) = listener.accept()
                self._hosts[linked(sock)] = host
            elif isinstance(source, Connection):
                self._hear(source)

    def _hear(self, link: Link) -> None:
        """What comes first, or too early."""
        host, rank = self._hosts[link], self._joined.get(link)
        try:
            _set_patience(link, _HELLO_SECONDS)
            greeting = msgspec.msgpack.decode(link.recv_bytes(MAX_GREETING), type=Hello)
            _set_patience(link, 0)
        except (EOFError, OSError, msgspec.MsgspecError):
            what = "what called is no node" if rank is None else f"node {rank} has gone before all were there"
            logger.warning("%s: %s", host, what)
            return self._drop(link)
        refusal = self._refusal(greeting)
        if refusal is None:
            logger.info("Node %d has joined from %s", greeting.node_rank, host)
            self._joined[link] = greeting.node_rank
        else:
            logger.warning("%s: refused a node: %s", host, refusal)
            with contextlib.suppress(OSError):
                link.send_bytes(_encode(Refused(refusal)))
            self._drop(link)

    def _refusal(self, greeting: Hello) -> str | None:
        rank, nnodes = greeting.node_rank, self._config.parallel.nnodes
        if greeting.version != __version__:
            return f"node {rank} has minivllm {greeting.version}, and node 0 has {__version__}."
        differences = list(_differences(greeting.config, _plain(self._config)))
        if differences:
            return f"node {rank} and node 0 need the same model and options, and differ: {'; '.join(differences[:4])}."
        if rank not in range(1, nnodes):
            return f"there is no node {rank}: --nnodes is {nnodes}."
        if rank in self._joined.values():
            return f"node {rank} is there already: is --node-rank {rank} given twice?"
        return None

    def _drop(self, link: Link) -> None:
        link.close()
        del self._hosts[link]
        self._joined.pop(link, None)


def _listen(parallel: ParallelConfig) -> socket.socket:
    host, port = parallel.master_addr, parallel.master_port
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family, backlog=parallel.nnodes)
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            raise ConfigError(f"--master-port {port} is in use on this machine.", param="master_port", value=port) from e
        raise ConfigError(
            f"--master-addr {host} is to be an address of node 0, which is this machine: {e.strerror}.",
            param="master_addr",
            value=host,
        ) from e


def _set_patience(link: Link, seconds: float) -> None:
    """How long a read may take; 0: for ever."""
    with socket.socket(fileno=os.dup(link.fileno())) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), 0))


def _plain(config: EngineConfig) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.msgpack.decode(_encode(config))
    return plain


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    for section in sorted(theirs.keys() | ours.keys()):
        there, here = theirs.get(section), ours.get(section)
        if not isinstance(there, dict) or not isinstance(here, dict):
            there, here = {section: there}, {section: here}
        for name in sorted((there.keys() | here.keys()) - _OWN):
            if there.get(name) != here.get(name):
                yield f"{name} is {there.get(name)!r:.60} there and {here.get(name)!r:.60} here"
