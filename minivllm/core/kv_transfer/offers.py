"""`Offers`: what a producer keeps for others, each to be taken once, for a while, and no more than so many bytes."""

import secrets
import threading
import time
from dataclasses import dataclass

import msgspec

from minivllm.core.kv_cache.block_hash import Digest
from minivllm.core.kv_transfer.segment import Segment


class Blocks(msgspec.Struct):
    """The first blocks of a prompt."""

    layout: bytes  # of the engine: see `exchange.layout_of`
    digests: list[Digest]  # what each of them holds
    sizes: list[int]  # bytes that each worker has of them


@dataclass(frozen=True, slots=True)
class Offer:
    blocks: Blocks
    segments: list[Segment]  # of each worker


class Offers:
    """Thread-safe. The oldest make room for new ones."""

    def __init__(self, num_bytes: float, seconds: float):
        self._num_bytes = num_bytes
        self._seconds = seconds
        self._kept: dict[str, tuple[float, Offer]] = {}  # with the end of its time, oldest first
        self._lock = threading.Lock()

    def put(self, offer: Offer) -> str:
        """The handle by which it can be taken."""
        handle = secrets.token_hex(16)
        with self._lock:
            self._kept[handle] = time.monotonic() + self._seconds, offer
            total = sum(sum(kept.blocks.sizes) for _, kept in self._kept.values())
            while total > self._num_bytes:
                total -= sum(self._kept.pop(next(iter(self._kept)))[1].blocks.sizes)
        return handle

    def take(self, handle: str) -> Offer | None:
        self.drop_old()
        with self._lock:
            return self._kept.pop(handle, (0.0, None))[1]

    def drop_old(self) -> None:
        now = time.monotonic()
        with self._lock:
            for handle in [handle for handle, (end, _) in self._kept.items() if end < now]:
                del self._kept[handle]
