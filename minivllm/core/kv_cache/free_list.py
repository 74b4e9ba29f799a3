"""Free blocks in the order in which they will be given out: least recently used first."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator


class FreeList:
    """All operations take constant time (an OrderedDict is a hash map over a linked list)."""

    __slots__ = ("_blocks",)

    def __init__(self, block_ids: Iterable[int]):
        self._blocks = OrderedDict.fromkeys(block_ids)

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        """Block ids, next to be given out first."""
        return iter(self._blocks)

    def pop(self) -> int:
        """Take the block that was unused the longest; KeyError if there is none."""
        return self._blocks.popitem(last=False)[0]

    def remove(self, block_id: int) -> None:
        """Take this block out (its content is wanted again)."""
        del self._blocks[block_id]

    def append(self, block_id: int) -> None:
        """Give back a block whose content may be wanted again: it goes last."""
        self._blocks[block_id] = None

    def prepend(self, block_id: int) -> None:
        """Give back a block whose content is worthless: it goes first, and spares a useful one."""
        self._blocks[block_id] = None
        self._blocks.move_to_end(block_id, last=False)
