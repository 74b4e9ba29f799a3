"""Names for block contents: equal digests mean equal tokens, equal history and equal extra keys, in any process."""

import hashlib
import struct
from collections.abc import Iterable, Sequence

Digest = bytes


def root_digest(extra_keys: Iterable[str] = ()) -> Digest:
    """The parent of a sequence's first block. Everything else that the content depends on (salt, adapter) goes in here."""
    hasher = hashlib.sha256(b"minivllm-kv")
    for key in extra_keys:
        data = key.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.digest()


class BlockHasher:
    """Digests of full blocks, each chained to the one before it."""

    __slots__ = ("_pack",)

    def __init__(self, block_size: int):
        self._pack = struct.Struct(f"<{block_size}I").pack

    def digest(self, parent: Digest, token_ids: Sequence[int]) -> Digest:
        """`token_ids` are exactly block_size ids below 2**32."""
        return hashlib.sha256(parent + self._pack(*token_ids)).digest()
