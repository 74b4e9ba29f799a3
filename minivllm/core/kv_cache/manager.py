"""Blocks for sequences: find what is cached, hold what is needed, name what is full, let go. Called by the scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from minivllm.core.kv_cache.block_hash import BlockHasher, Digest, root_digest
from minivllm.core.kv_cache.block_pool import BlockPool


@dataclass(slots=True, eq=False)
class SequenceBlocks:
    """What one sequence holds. The digests belong to its tokens and stay true when the blocks are gone."""

    root: Digest
    block_ids: list[int] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)  # of its first len(digests) full blocks
    num_named: int = 0  # leading blocks of `block_ids` whose content is final and was offered for sharing


class KVCacheManager:
    """Counts in tokens outside, in blocks inside. A sequence's tokens may only be appended to.

    No blocks at all are for a model that keeps no keys and values: every sequence then has what it needs.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True):
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching and num_blocks > 0
        self._pool = BlockPool(num_blocks)
        self._hasher = BlockHasher(block_size)

    @property
    def usage(self) -> float:
        """Share of blocks that sequences hold, 0 to 1."""
        return 1 - self._pool.num_free / self._pool.num_blocks if self._pool.num_blocks else 0.0

    def open(self, cache_salt: str | None = None) -> SequenceBlocks:
        """The record of a new sequence. Sequences with different salts never share a block."""
        return SequenceBlocks(root_digest(() if cache_salt is None else ("salt", cache_salt)))

    def match_prefix(self, blocks: SequenceBlocks, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Cached blocks that hold the first tokens of `token_ids`, for at most `max_tokens` of them. Holds nothing yet."""
        found: list[int] = []
        if self.enable_prefix_caching:
            for index in range(min(max_tokens, len(token_ids)) // self.block_size):
                block_id = self._pool.find(self._digest(blocks, token_ids, index))
                if block_id is None:
                    break
                found.append(block_id)
        return found

    def digests(self, blocks: SequenceBlocks, token_ids: Sequence[int]) -> list[Digest]:
        """Of all full blocks."""
        return [self._digest(blocks, token_ids, index) for index in range(len(token_ids) // self.block_size)]

    def is_same_block(
        self,
        index: int,
        blocks: SequenceBlocks,
        token_ids: Sequence[int],
        other: SequenceBlocks,
        other_token_ids: Sequence[int],
    ) -> bool:
        """Whether two sequences could share their block `index`, which both must have full; False without prefix caching."""
        return self.enable_prefix_caching and self._digest(blocks, token_ids, index) == self._digest(
            other, other_token_ids, index
        )

    def allocate(self, blocks: SequenceBlocks, num_tokens: int, cached: Sequence[int] = (), spare: int = 0) -> list[int] | None:
        """Make the sequence hold blocks for `num_tokens` tokens; returns what was added, or None (nothing changed).

        `cached` (from `match_prefix`) become the first blocks of a sequence that has none. `spare` blocks must stay free.
        """
        if not self._pool.num_blocks:
            return []
        num_held = len(blocks.block_ids)
        num_new = -(-num_tokens // self.block_size) - num_held - len(cached)
        if num_new <= 0 and not cached:
            return []
        num_revived = sum(1 for block_id in cached if self._pool.ref_count(block_id) == 0)
        if max(num_new, 0) + num_revived + spare > self._pool.num_free:
            return None
        assert not cached or not num_held, "cached blocks can only start a sequence"
        for block_id in cached:
            self._pool.share(block_id)
        added = [*cached, *(self._pool.take() for _ in range(num_new))]
        blocks.block_ids += added
        blocks.num_named += len(cached)
        return added

    def has_room(self, blocks: SequenceBlocks, num_tokens: int) -> bool:
        """Whether the sequence could hold `num_tokens` tokens now, without finding any of them in the cache."""
        return -(-num_tokens // self.block_size) - len(blocks.block_ids) <= self._pool.num_free

    def commit(self, blocks: SequenceBlocks, token_ids: Sequence[int], num_computed: int) -> None:
        """Offer the blocks whose tokens are all known and computed (or being computed in the step now planned) for sharing."""
        if self.enable_prefix_caching:
            for index in range(blocks.num_named, min(num_computed, len(token_ids)) // self.block_size):
                self._pool.name(blocks.block_ids[index], self._digest(blocks, token_ids, index))
                blocks.num_named = index + 1

    def free(self, blocks: SequenceBlocks, forget: bool = False) -> None:
        """Let go of all blocks, the last ones to be reused first. `forget`: their content is bad, never share it again."""
        if forget:
            for block_id in blocks.block_ids:
                self._pool.forget(block_id)
        self._pool.release(reversed(blocks.block_ids))
        blocks.block_ids = []
        blocks.num_named = 0

    def reset_prefix_cache(self) -> None:
        """Forget all contents; running sequences keep their blocks."""
        self._pool.forget_all()

    def _digest(self, blocks: SequenceBlocks, token_ids: Sequence[int], index: int) -> Digest:
        digests = blocks.digests
        while len(digests) <= index:
            start = len(digests) * self.block_size
            parent = digests[-1] if digests else blocks.root
            digests.append(self._hasher.digest(parent, token_ids[start : start + self.block_size]))
        return digests[index]
