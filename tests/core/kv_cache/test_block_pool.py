"""Reference counts, sharing and eviction of blocks."""

import pytest

from minivllm.core.kv_cache.block_pool import BlockPool


def test_a_named_block_outlives_its_holder_and_can_be_brought_back():
    pool = BlockPool(3)
    block = pool.take()
    pool.name(block, b"x")
    pool.release([block])
    assert pool.num_free == 3
    assert pool.find(b"x") == block
    pool.share(block)
    assert (pool.num_free, pool.ref_count(block)) == (2, 1)


def test_a_shared_block_is_free_only_when_nobody_holds_it():
    pool = BlockPool(2)
    block = pool.take()
    pool.share(block)
    pool.release([block])
    assert (pool.ref_count(block), pool.num_free) == (1, 1)
    pool.release([block])
    assert (pool.ref_count(block), pool.num_free) == (0, 2)


def test_eviction_takes_worthless_blocks_first_then_the_least_recently_used():
    pool = BlockPool(3)
    a, b, c = pool.take(), pool.take(), pool.take()
    pool.name(a, b"a")
    pool.name(b, b"b")
    pool.release([b])
    pool.release([a])
    pool.release([c])
    assert [pool.take(), pool.take()] == [c, b]
    assert (pool.find(b"b"), pool.find(b"a")) == (None, a)


def test_the_first_block_with_a_content_stays_the_one_to_share():
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    pool.name(first, b"x")
    pool.name(second, b"x")
    assert pool.find(b"x") == first
    pool.forget(second)
    assert pool.find(b"x") == first
    pool.forget(first)
    assert pool.find(b"x") is None


def test_misuse_is_loud():
    pool = BlockPool(1)
    block = pool.take()
    with pytest.raises(KeyError):
        pool.take()
    pool.release([block])
    with pytest.raises(AssertionError):
        pool.release([block])
