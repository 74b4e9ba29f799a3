"""Blocks for sequences: what is found, what is held, what is let go."""

import pytest

from minivllm.core.kv_cache.manager import KVCacheManager

BLOCK = 4


@pytest.fixture
def manager():
    return KVCacheManager(num_blocks=8, block_size=BLOCK)


def fill(manager, tokens, salt=None):
    """A sequence that was computed as far as `tokens` go."""
    blocks = manager.open(salt)
    cached = manager.match_prefix(blocks, tokens, len(tokens) - 1)
    assert manager.allocate(blocks, len(tokens), cached) is not None
    manager.commit(blocks, tokens, len(tokens))
    return blocks, len(cached) * BLOCK


def test_a_prefix_is_found_in_whole_blocks_and_never_all_of_the_tokens(manager):
    tokens = list(range(12))
    first, hit = fill(manager, tokens)
    assert (hit, len(first.block_ids)) == (0, 3)
    same, hit = fill(manager, tokens)
    assert hit == 8
    assert same.block_ids[:2] == first.block_ids[:2]
    assert same.block_ids[2] != first.block_ids[2]
    longer, hit = fill(manager, [*tokens, 99])
    assert hit == 12
    assert longer.block_ids[:3] == first.block_ids


def test_equal_second_blocks_after_different_first_ones_share_nothing(manager):
    fill(manager, [1, 1, 1, 1, 5, 6, 7, 8])
    _, hit = fill(manager, [2, 2, 2, 2, 5, 6, 7, 8, 9])
    assert hit == 0


def test_salts_separate():
    manager = KVCacheManager(num_blocks=16, block_size=BLOCK)
    fill(manager, list(range(8)), salt="a")
    assert fill(manager, list(range(9)), salt="b")[1] == 0
    assert fill(manager, list(range(9)))[1] == 0
    assert fill(manager, list(range(9)), salt="a")[1] == 8


def test_a_failed_allocation_changes_nothing(manager):
    holder, _ = fill(manager, list(range(20)))
    manager.free(holder)
    hog, _ = fill(manager, [9] * 16)
    blocks = manager.open()
    cached = manager.match_prefix(blocks, list(range(20)), 19)
    assert len(cached) == 4
    # 4 free blocks, all of them the cached ones: bringing them back leaves none for the rest
    assert manager.allocate(blocks, 20, cached) is None
    assert (blocks.block_ids, manager.usage) == ([], 0.5)
    assert manager.allocate(blocks, 16, cached, spare=1) is None
    assert manager.allocate(blocks, 16, cached) == cached
    manager.free(blocks)
    manager.free(hog)
    assert manager.usage == 0


def test_growth_adds_a_block_only_when_the_last_one_is_full(manager):
    blocks = manager.open()
    assert manager.allocate(blocks, 3) == [0]
    assert manager.allocate(blocks, 4) == []
    assert manager.allocate(blocks, 5) == [1]
    assert manager.allocate(blocks, 17) == [2, 3, 4]
    assert manager.usage == 5 / 8


def test_the_tail_of_a_sequence_is_evicted_before_its_head(manager):
    first, _ = fill(manager, list(range(32)))
    manager.free(first)
    other, _ = fill(manager, [7] * 12)
    assert len(manager.match_prefix(manager.open(), list(range(32)), 32)) == 5
    manager.free(other)


def test_only_full_known_and_computed_blocks_are_offered(manager):
    tokens = list(range(10))
    blocks = manager.open()
    manager.allocate(blocks, 10)
    manager.commit(blocks, tokens, 7)
    assert len(manager.match_prefix(manager.open(), tokens, 10)) == 1
    manager.commit(blocks, tokens[:7], 10)  # three more computed in flight, but their tokens are not known yet
    assert len(manager.match_prefix(manager.open(), tokens, 10)) == 1
    manager.commit(blocks, tokens, 10)
    assert len(manager.match_prefix(manager.open(), tokens, 10)) == 2


def test_bad_blocks_are_never_shared_again(manager):
    blocks, _ = fill(manager, list(range(8)))
    manager.free(blocks, forget=True)
    assert manager.match_prefix(manager.open(), list(range(8)), 8) == []
    assert manager.usage == 0


def test_reset_forgets_but_takes_nothing_away(manager):
    blocks, _ = fill(manager, list(range(8)))
    manager.reset_prefix_cache()
    assert manager.match_prefix(manager.open(), list(range(8)), 8) == []
    assert len(blocks.block_ids) == 2
    manager.free(blocks)
    assert manager.usage == 0


def test_switched_off_nothing_is_found():
    manager = KVCacheManager(num_blocks=8, block_size=BLOCK, enable_prefix_caching=False)
    blocks, _ = fill(manager, list(range(8)))
    manager.free(blocks)
    assert fill(manager, list(range(9)))[1] == 0
