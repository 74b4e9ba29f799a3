"""`TcpConnector`: bytes from one machine to another. They are not encrypted: for networks where all may see them."""

import os
import socket
import time
from collections.abc import Sequence

from minivllm.config.sections.kv_transfer import KVTransferConfig
from minivllm.core.kv_transfer.connector import KVConnector, TransferError
from minivllm.core.kv_transfer.segment import Segment
from minivllm.messages.kv_transfer import KVTransferParams


class TcpConnector(KVConnector):
    def __init__(self, config: KVTransferConfig, rank: int):
        self._host, self._port = config.kv_ip, config.kv_port + rank
        self._peers = config.kv_connector_extra_config.peers

    def listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        return socket.create_server((self._host, self._port), family=family)

    def address(self) -> KVTransferParams:
        return KVTransferParams(remote_host=self._host, remote_port=self._port)

    def connect(self, address: KVTransferParams, timeout: float) -> socket.socket:
        host, port = address.remote_host, address.remote_port
        if port is None or f"{host}:{port}" not in self._peers:
            raise TransferError("it is none of the peers in --kv-transfer-config")
        return socket.create_connection((host, port), timeout)

    def send(self, peer: socket.socket, segments: Sequence[Segment]) -> None:
        for segment in segments:
            with open(os.dup(segment.descriptor), "rb") as file:
                peer.sendfile(file)

    def receive(self, peer: socket.socket, sizes: Sequence[int], deadline: float) -> list[Segment]:
        return [_receive(peer, size, deadline) for size in sizes]


def _receive(peer: socket.socket, size: int, deadline: float) -> Segment:
    segment = Segment.new(size)
    with segment.map() as memory, memoryview(memory) as view:
        received = 0
        while received < size:
            peer.settimeout(max(deadline - time.monotonic(), 1e-3))
            with view[received:] as rest:
                count = peer.recv_into(rest)
            if count == 0:
                raise TransferError("it closed the connection in the middle")
            received += count
    return segment
