"""`SharedMemoryConnector`: engines of one user on one machine hand over the memory itself; nothing is copied on the way."""

import os
import socket
import struct
from collections.abc import Sequence

from minivllm.config.sections.kv_transfer import KVTransferConfig
from minivllm.core.kv_transfer.connector import KVConnector, TransferError
from minivllm.core.kv_transfer.segment import Segment
from minivllm.messages.kv_transfer import KVTransferParams

_CREDENTIALS = struct.Struct("3i")  # process, user, group


class SharedMemoryConnector(KVConnector):
    """Its sockets have names that no file stands for. Whatever engine a client names: it is one of this user's."""

    def __init__(self, config: KVTransferConfig, rank: int):
        self._engine_id = f"{config.engine_id}-{rank}"

    def listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(_name(self._engine_id))
        listener.listen()
        return listener

    def address(self) -> KVTransferParams:
        return KVTransferParams(remote_engine_id=self._engine_id)

    def connect(self, address: KVTransferParams, timeout: float) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(timeout)
        peer.connect(_name(address.remote_engine_id or ""))
        _check_user(peer)
        return peer

    def send(self, peer: socket.socket, segments: Sequence[Segment]) -> None:
        _check_user(peer)
        socket.send_fds(peer, [b"\0"], [segment.descriptor for segment in segments])

    def receive(self, peer: socket.socket, sizes: Sequence[int], deadline: float) -> list[Segment]:
        _, descriptors, _, _ = socket.recv_fds(peer, 1, len(sizes), socket.MSG_CMSG_CLOEXEC)
        segments = [Segment(descriptor) for descriptor in descriptors]
        if [segment.size for segment in segments] != list(sizes):
            raise TransferError("its segments have other sizes than it said")
        return segments


def _name(engine_id: str) -> str:
    return f"\0minivllm-kv-{engine_id}"


def _check_user(peer: socket.socket) -> None:
    """Such sockets have no file permissions."""
    _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != os.getuid():
        raise TransferError("it runs as another user")
