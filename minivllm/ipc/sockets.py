"""Push and pull sockets between engine and core. The engine binds, the core connects; nothing is left on disk on Linux."""

import os
import sys
from typing import Any, TypeVar

import zmq

SocketT = TypeVar("SocketT", bound="zmq.Socket[Any]")

LINGER_MS = 2000  # a closing socket gives its peer this long to take what was sent


def bind(context: "zmq.Context[SocketT]", kind: int, address: str) -> SocketT:
    """A bound zmq.PUSH or zmq.PULL socket of the context's own type (blocking or asyncio).

    Abstract sockets have no file permissions, so only processes of this user may connect.
    """
    socket = _open(context, kind)
    if sys.platform == "linux":
        socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
    socket.bind(address)
    return socket


def connect(context: "zmq.Context[SocketT]", kind: int, address: str) -> SocketT:
    """A connected zmq.PUSH or zmq.PULL socket; what is sent before the peer answers is kept."""
    socket = _open(context, kind)
    socket.connect(address)
    return socket


def _open(context: "zmq.Context[SocketT]", kind: int) -> SocketT:
    socket = context.socket(kind)
    # No high-water marks: a full queue would block the core's loop. The admission limit upstream bounds what is in flight.
    socket.set_hwm(0)
    socket.linger = LINGER_MS
    return socket
