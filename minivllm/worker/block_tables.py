"""`BlockTables`: which blocks of the KV cache hold each slot's tokens, in order."""

import numpy as np
import numpy.typing as npt


class BlockTables:
    """Row s: block ids of slot s. Entries beyond a slot's count are left over from others and must not be read."""

    def __init__(self, num_slots: int, max_blocks: int):
        self.table = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self._counts = [0] * num_slots
        self._gathered = np.zeros_like(self.table)

    def set(self, slot: int, block_ids: list[int]) -> None:
        self._counts[slot] = 0
        self.append(slot, block_ids)

    def append(self, slot: int, block_ids: list[int]) -> None:
        begin = self._counts[slot]
        end = begin + len(block_ids)
        self.table[slot, begin:end] = block_ids
        self._counts[slot] = end

    def rows(self, slots: npt.NDArray[np.int64], num_blocks: int) -> npt.NDArray[np.int32]:
        """The first `num_blocks` entries of each slot's row, in memory that the next call uses again."""
        gathered = self._gathered[: len(slots), :num_blocks]
        gathered[:] = self.table[slots, :num_blocks]
        return gathered
