"""Main of a node above 0: `python -m minivllm.executor.node_process`, an `EngineConfig` on stdin. `minivllm serve --headless`
becomes it.

It joins node 0 and starts this machine's workers. What node 0 says goes on to them, and what they say goes there; it ends
with node 0, with any of its workers, or by a signal.
"""

import contextlib
import dataclasses
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import NoReturn

import msgspec

from minivllm.config.engine_config import EngineConfig
from minivllm.config.env import logging_level
from minivllm.errors import ConfigError, MinivllmError, ServerError
from minivllm.executor.launch import BYE, DEAD, Refused, Welcome
from minivllm.executor.nodes import MAX_GREETING, REMIND_SECONDS, Link, hello, linked
from minivllm.executor.worker_processes import WorkerProcesses
from minivllm.executor.world import make_world
from minivllm.utils.logging import get_logger, set_level

logger = get_logger(__name__)

_RETRY_SECONDS = 0.2


def main() -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    set_level(logging_level())
    try:
        run(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=EngineConfig))
    except MinivllmError as e:
        print(f"minivllm: error: {e.message}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def run(config: EngineConfig) -> None:
    """Returns when node 0 says that it is time. ConfigError if it refuses this node; ServerError if something dies."""
    link, seed = _join(config)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, seed=seed))  # all draw the same numbers
    workers = WorkerProcesses(make_world(config))
    try:
        _relay(link, workers, config.parallel.node_rank)
    except ServerError:
        workers.kill()
        raise
    finally:
        workers.close()


def _join(config: EngineConfig) -> tuple[Link, int]:
    """The connection to node 0 and the seed there, when all nodes have come."""
    parallel = config.parallel
    where = f"node 0 at {parallel.master_addr}, port {parallel.master_port}"
    link = linked(_connect(parallel.master_addr, parallel.master_port, parallel.distributed_timeout_seconds, where))
    try:
        link.send_bytes(hello(config))
        logger.info("Node %d of %d has found %s", parallel.node_rank, parallel.nnodes, where)
        reply = msgspec.msgpack.decode(link.recv_bytes(MAX_GREETING), type=Welcome | Refused)
    except (EOFError, OSError, msgspec.MsgspecError) as e:
        raise ConfigError(
            f"There is no answer from {where}: it has ended, all nodes are there (is --node-rank {parallel.node_rank} given "
            "twice?), or it is something else.",
            param="master_addr",
        ) from e
    if isinstance(reply, Refused):
        raise ConfigError(f"{where[0].upper()}{where[1:]} refuses: {reply.message}")
    return link, reply.seed


def _connect(host: str, port: int, seconds: float, where: str) -> socket.socket:
    remind = now = time.monotonic()
    deadline = now + seconds
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=min(REMIND_SECONDS, max(_RETRY_SECONDS, deadline - now)))
            if sock.getsockname() != sock.getpeername():  # else by chance it was given that very port, and found itself
                return sock
            sock.close()
        except OSError as e:
            now = time.monotonic()
            if now >= deadline:
                raise ConfigError(
                    f"Waited {seconds:g} s (--distributed-timeout-seconds) in vain for {where}: {e}.", param="master_addr"
                ) from e
            if now >= remind:
                logger.info("Waiting for %s: %s", where, e)
                remind = now + REMIND_SECONDS
        time.sleep(_RETRY_SECONDS)


def _relay(link: Link, workers: WorkerProcesses, rank: int) -> None:
    """Between node 0 and the workers of this node, until one of them has gone."""
    while True:
        for source in wait_for([link, *workers.replies]):
            assert isinstance(source, Connection)
            try:
                message = source.recv_bytes()
            except (EOFError, OSError):
                if source is link:
                    raise ServerError("Node 0 has gone: its log says why.") from None
                death = f"Node {rank}: {workers.death() or 'a worker closed its pipe.'}"
                with contextlib.suppress(OSError):
                    link.send_bytes(DEAD + death.encode())
                raise ServerError(death) from None
            if source is not link:
                with contextlib.suppress(OSError):  # node 0 has gone, as its end of the link will tell
                    link.send_bytes(message)
            elif message == BYE:
                return
            else:
                workers.plans.write(message)


if __name__ == "__main__":
    main()
