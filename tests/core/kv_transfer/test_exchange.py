"""Blocks from engine to engine by both connectors: who gets which bytes, and who gets none."""

import os
import socket
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fake_worker import make_config
from real_server import free_port

from minivllm.config.engine_args import EngineArgs
from minivllm.config.sections.kv_transfer import read_kv_transfer
from minivllm.core.kv_transfer.connector import TransferError
from minivllm.core.kv_transfer.exchange import Exchange
from minivllm.core.kv_transfer.offers import Offer
from minivllm.errors import ConfigError
from minivllm.messages.kv_spec import KVSpec
from minivllm.messages.kv_transfer import KVTransferParams

SPECS = [KVSpec(4, 48), KVSpec(4, 96)]  # of two workers
DIGESTS = [bytes([number]) * 32 for number in range(3)]


def make_exchange(connector: str, role: str, port: int = 0, *, specs: list[KVSpec] = SPECS, model: Path = Path(), **more):
    options = {"peers": [f"127.0.0.1:{port}"], "timeout_seconds": 2, **more.pop("kv_connector_extra_config", {})}
    given = {"kv_connector": connector, "kv_role": role, "kv_port": port or 14579, "kv_connector_extra_config": options, **more}
    config = make_config()
    return Exchange(replace(config, kv_transfer=read_kv_transfer(given), model=replace(config.model, path=str(model))), specs)


def offer(producer: Exchange) -> tuple[KVTransferParams, list[bytes]]:
    segments = producer.make_segments(len(DIGESTS))
    contents = [os.urandom(segment.size) for segment in segments]
    for segment, content in zip(segments, contents, strict=True):
        segment.map()[:] = content
    return producer.offer(DIGESTS, segments), contents


def fetch(consumer: Exchange, params: KVTransferParams) -> Offer:
    return consumer.fetch(params, time.monotonic())


@pytest.mark.parametrize("connector", ["SharedMemoryConnector", "TcpConnector"])
def test_blocks_are_handed_over_once(connector, tmp_path):
    files, port = len(os.listdir("/proc/self/fd")), free_port()
    with (
        closing(make_exchange(connector, "kv_producer", port)) as producer,
        closing(make_exchange(connector, "kv_consumer", port)) as consumer,
        closing(make_exchange(connector, "kv_consumer", port, specs=SPECS[::-1])) as other_layout,
    ):
        params, contents = offer(producer)
        assert params.do_remote_prefill and params.remote_num_blocks == 3 and not params.do_remote_decode
        got = fetch(consumer, params)
        assert got.blocks.digests == DIGESTS and [bytes(segment.map()) for segment in got.segments] == contents
        with pytest.raises(TransferError, match="does not have them any more"):
            fetch(consumer, params)
        with pytest.raises(TransferError, match="its model, number types or numbers of workers are others"):
            fetch(other_layout, offer(producer)[0])
        params, _ = offer(producer)
        (tmp_path / "model.safetensors").write_bytes(b"other weights")
        other_model = make_exchange(connector, "kv_consumer", port, model=tmp_path)
        with pytest.raises(TransferError, match="its model"):
            fetch(other_model, params)
        params, _ = offer(producer)
    with pytest.raises(OSError):  # it is gone
        fetch(consumer, params)
    del got, producer, consumer, other_layout, other_model
    deadline = time.monotonic() + 3  # the producer's thread looks once a second
    while len(os.listdir("/proc/self/fd")) > files and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= files


def test_what_is_kept_is_bounded():
    port = free_port()
    bounds = {"kv_buffer_size": 2 * 3 * (48 + 96), "kv_connector_extra_config": {"keep_seconds": 0.4}}
    with (
        closing(make_exchange("TcpConnector", "kv_producer", port, **bounds)) as producer,
        closing(make_exchange("TcpConnector", "kv_consumer", port)) as consumer,
        closing(make_exchange("TcpConnector", "kv_consumer", port, kv_buffer_size=100)) as small,
    ):
        assert producer.max_blocks == 6
        oldest, second, third = (offer(producer) for _ in range(3))
        with pytest.raises(TransferError, match="does not have them"):
            fetch(consumer, oldest[0])
        assert bytes(fetch(consumer, second[0]).segments[1].map()) == second[1][1]
        with pytest.raises(TransferError, match="3 blocks of 432 bytes are not what they should be"):
            fetch(small, offer(producer)[0])
        time.sleep(0.5)
        with pytest.raises(TransferError, match="does not have them"):
            fetch(consumer, third[0])


def test_no_client_can_send_it_anywhere():
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0.1)
        params = KVTransferParams(remote_host="127.0.0.1", remote_port=elsewhere.getsockname()[1], remote_request_id="x")
        with pytest.raises(TransferError, match="none of the peers"):
            fetch(make_exchange("TcpConnector", "kv_consumer", 9), params)
        with pytest.raises(TimeoutError):
            elsewhere.accept()


@pytest.mark.parametrize("answer", [b"", b"\0" * 7 + b"\x05hello", b"\xff" * 8, b"\0" * 8, None])
def test_a_peer_that_talks_nonsense_or_nothing(answer):
    with socket.create_server(("127.0.0.1", 0)) as peer:
        port = peer.getsockname()[1]
        bounds = {"kv_connector_extra_config": {"timeout_seconds": 0.2}}
        with closing(make_exchange("TcpConnector", "kv_consumer", port, **bounds)) as consumer:
            if answer is not None:
                threading.Thread(target=say, args=[peer, answer]).start()
            with pytest.raises((OSError, EOFError, ValueError, TransferError)):
                fetch(consumer, KVTransferParams(remote_host="127.0.0.1", remote_port=port, remote_request_id="x"))


def say(listener: socket.socket, answer: bytes) -> None:
    peer, _ = listener.accept()
    with peer:
        peer.sendall(answer)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kv_connector": "NixlConnector", "kv_role": "kv_both"}, r"Invalid enum value 'NixlConnector' - at `\$.kv_connector`"),
        ({"kv_connector": "TcpConnector"}, "missing required field `kv_role`"),
        ({"kv_connector": "TcpConnector", "kv_role": "kv_both"}, "asks only the producers that you name"),
        ({"kv_connector": "SharedMemoryConnector", "kv_role": "kv_both", "x": 1}, "unknown field `x`"),
    ],
)
def test_mistakes_in_the_configuration(given, message):
    with pytest.raises(ConfigError, match=message):
        read_kv_transfer(given)


def test_combinations_that_cannot_be(smollm2):
    good = {"kv_connector": "SharedMemoryConnector", "kv_role": "kv_both"}
    for options, message in [
        ({"enable_prefix_caching": False}, "--enable-prefix-caching"),
        ({"runner": "pooling"}, "a model that generates"),
        ({"distributed_executor_backend": "ray"}, "no Ray"),
    ]:
        with pytest.raises(ConfigError, match=message):
            EngineArgs(str(smollm2), kv_transfer_config=good, **options).resolve()


def test_an_address_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match=r"listen.*: Address already in use"):
        make_exchange("TcpConnector", "kv_producer", taken.getsockname()[1])
