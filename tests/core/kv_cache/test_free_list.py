"""The free list gives out the least recently used block first."""

import pytest

from minivllm.core.kv_cache.free_list import FreeList


def test_order_of_use():
    free = FreeList(range(4))
    assert [free.pop(), free.pop()] == [0, 1]
    free.append(1)
    free.prepend(0)
    assert list(free) == [0, 2, 3, 1]
    free.remove(3)
    assert [free.pop() for _ in range(len(free))] == [0, 2, 1]


def test_misuse_is_loud():
    free = FreeList([])
    with pytest.raises(KeyError):
        free.pop()
    with pytest.raises(KeyError):
        free.remove(7)
