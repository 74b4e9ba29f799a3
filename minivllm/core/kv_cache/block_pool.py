"""The blocks themselves: reference counts, the map from content to block, eviction."""

from collections.abc import Iterable

from minivllm.core.kv_cache.block_hash import Digest
from minivllm.core.kv_cache.free_list import FreeList


class BlockPool:
    """Every block is either held (reference count > 0) or in the free list; both kinds may be findable by digest."""

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._free = FreeList(range(num_blocks))
        self._block_of: dict[Digest, int] = {}
        self._digest_of: dict[int, Digest] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def take(self) -> int:
        """A block to write to, held once; what it was known for is forgotten. KeyError if none is free."""
        block_id = self._free.pop()
        self.forget(block_id)
        self._ref_counts[block_id] = 1
        return block_id

    def share(self, block_id: int) -> None:
        """Hold a block once more; also brings a free one back."""
        if self._ref_counts[block_id] == 0:
            self._free.remove(block_id)
        self._ref_counts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Let go of blocks; those that nobody holds become free, the first of them to be reused first."""
        for block_id in block_ids:
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                if block_id in self._digest_of:
                    self._free.append(block_id)
                else:
                    self._free.prepend(block_id)
            assert self._ref_counts[block_id] >= 0, f"block {block_id} was released more often than held"

    def find(self, digest: Digest) -> int | None:
        return self._block_of.get(digest)

    def name(self, block_id: int, digest: Digest) -> None:
        """Make a full block findable. If another block has this content already, that one stays the one to share."""
        if digest not in self._block_of:
            self._block_of[digest] = block_id
            self._digest_of[block_id] = digest

    def forget(self, block_id: int) -> None:
        """Make a block's content unfindable; holders keep it."""
        digest = self._digest_of.pop(block_id, None)
        if digest is not None:
            del self._block_of[digest]

    def forget_all(self) -> None:
        self._block_of.clear()
        self._digest_of.clear()
