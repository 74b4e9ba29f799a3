"""`Exchange`: offers blocks to other engines, and fetches what they offer. Used by `transfers`, and from threads of its own.

A consumer connects and sends a handle; the producer answers with its `Blocks`, or nothing, and then the connector sends the
segments. Both are frames of `ipc.frames`, the answer in msgpack.
"""

import hashlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from minivllm.config.engine_config import EngineConfig
from minivllm.config.sections.kv_transfer import TCP
from minivllm.core.kv_cache.block_hash import Digest
from minivllm.core.kv_transfer.connector import KVConnector, TransferError
from minivllm.core.kv_transfer.offers import Blocks, Offer, Offers
from minivllm.core.kv_transfer.segment import Segment
from minivllm.core.kv_transfer.shared_memory import SharedMemoryConnector
from minivllm.core.kv_transfer.tcp import TcpConnector
from minivllm.errors import ConfigError
from minivllm.ipc.frames import read_frame, write_frame
from minivllm.messages.kv_spec import KVSpec
from minivllm.messages.kv_transfer import KVTransferParams
from minivllm.utils.logging import get_logger
from minivllm.version import __version__

logger = get_logger(__name__)

_MAX_HANDLE = 128  # bytes
_MAX_BLOCKS_FRAME = 1 << 23  # bytes: 34 of each block
_MAX_PEERS = 8  # served at a time; others wait
_LOOK_SECONDS = 1.0  # between looks for what has become too old
_SAMPLES = 4  # pieces of each file of weights
_SAMPLE_BYTES = 4096


class Exchange:
    def __init__(self, config: EngineConfig, specs: Sequence[KVSpec]):
        """`specs`: of all workers. ConfigError if a producer cannot listen."""
        assert config.kv_transfer is not None
        transfer, rank = config.kv_transfer, config.parallel.data_parallel_rank
        options = transfer.kv_connector_extra_config
        self._connector: KVConnector = (TcpConnector if transfer.kv_connector == TCP else SharedMemoryConnector)(transfer, rank)
        self._layout = layout_of(config, specs)
        self._block_sizes = [spec.bytes_per_block for spec in specs]
        self.max_blocks = int(transfer.kv_buffer_size) // sum(self._block_sizes)
        self._timeout = options.timeout_seconds
        self._offers = Offers(transfer.kv_buffer_size, options.keep_seconds)
        self._listener: socket.socket | None = None
        self._peers = threading.BoundedSemaphore(_MAX_PEERS)
        if transfer.produces:
            self._listener = self._listen()
            threading.Thread(target=self._serve, args=[self._listener], name="minivllm-kv", daemon=True).start()

    def make_segments(self, num_blocks: int) -> list[Segment]:
        """For each worker's part of so many blocks."""
        return [Segment.new(num_blocks * size) for size in self._block_sizes]

    def offer(self, digests: list[Digest], segments: list[Segment]) -> KVTransferParams:
        """What a consumer must be sent to get them."""
        blocks = Blocks(self._layout, digests, [segment.size for segment in segments])
        handle = self._offers.put(Offer(blocks, segments))
        return msgspec.structs.replace(
            self._connector.address(), do_remote_prefill=True, remote_request_id=handle, remote_num_blocks=len(digests)
        )

    def fetch(self, params: KVTransferParams, begin: float) -> Offer:
        """TransferError or OSError if it cannot be had. Takes a while, from time.monotonic() = `begin` on: for a thread."""
        deadline = begin + self._timeout
        with self._connector.connect(params, _left(deadline)) as peer:
            peer.settimeout(_left(deadline))
            with peer.makefile("wb") as out:
                write_frame(out, (params.remote_request_id or "").encode())
            with peer.makefile("rb", buffering=0) as answer:  # what follows it must not be read
                data = read_frame(answer, _MAX_BLOCKS_FRAME)
            if not data:
                raise TransferError("it does not have them any more, or never had")
            blocks = msgspec.msgpack.decode(data, type=Blocks)
            if blocks.layout != self._layout:
                raise TransferError("its model, number types or numbers of workers are others")
            num_blocks = len(blocks.digests)
            if blocks.sizes != [num_blocks * size for size in self._block_sizes] or num_blocks > self.max_blocks:
                raise TransferError(f"{num_blocks} blocks of {sum(blocks.sizes)} bytes are not what they should be")
            return Offer(blocks, self._connector.receive(peer, blocks.sizes, deadline))

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _listen(self) -> socket.socket:
        try:
            listener = self._connector.listen()
        except OSError as e:
            raise ConfigError(
                f"--kv-transfer-config: cannot listen for consumers: {e.strerror}. Is the kv_port or engine_id in use?",
                param="kv_transfer_config",
            ) from e
        listener.settimeout(_LOOK_SECONDS)
        return listener

    def _serve(self, listener: socket.socket) -> None:
        while listener.fileno() >= 0:
            self._peers.acquire()
            try:
                peer, _ = listener.accept()
            except OSError:  # nobody came, or it was closed
                self._peers.release()
                self._offers.drop_old()
                continue
            threading.Thread(target=self._answer, args=[peer], name="minivllm-kv-peer", daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        try:
            with peer:
                peer.settimeout(self._timeout)
                with peer.makefile("rb", buffering=0) as question:
                    handle = read_frame(question, _MAX_HANDLE).decode()
                offer = self._offers.take(handle)
                with peer.makefile("wb") as out:
                    write_frame(out, b"" if offer is None else msgspec.msgpack.encode(offer.blocks))
                if offer is not None:
                    self._connector.send(peer, offer.segments)
        except (OSError, EOFError, ValueError, TransferError) as e:
            logger.debug("a consumer got nothing: %s", e)
        finally:
            self._peers.release()


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 1e-3)


def layout_of(config: EngineConfig, specs: Sequence[KVSpec]) -> bytes:
    """Equal for engines whose blocks are alike, byte for byte: same model, number types, workers and version."""
    parallel = config.parallel
    workers = parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.enable_expert_parallel
    kinds = config.model.dtype, config.model.quantization, config.cache.kv_cache_dtype, config.device.device
    hasher = hashlib.sha256(msgspec.msgpack.encode([__version__, config.spec, config.stored, list(specs), workers, kinds]))
    for part in _sample(Path(config.model.path)):
        hasher.update(part)
    return hasher.digest()


def _sample(model: Path) -> Iterator[bytes]:
    """Some of the weights: enough to tell models of one shape from each other."""
    kinds = (".safetensors", ".bin", ".pt", ".gguf")
    for path in [model] if model.is_file() else sorted(path for path in model.iterdir() if path.suffix in kinds):
        size = path.stat().st_size
        yield size.to_bytes(8, "little")
        with suppress(OSError), path.open("rb") as file:
            for index in range(1, _SAMPLES + 1):
                file.seek(size * index // (_SAMPLES + 1))
                yield file.read(_SAMPLE_BYTES)
