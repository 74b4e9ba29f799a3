"""`Texts`: where the texts of a step stand, for attention that sees whole texts."""

from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor


class Texts:
    def __init__(self, query_start: Tensor):
        """int32 [num_texts + 1]: rows query_start[i] to query_start[i + 1] are text i."""
        self.query_start = query_start
        self._masks: dict[tuple[int, int], Tensor] = {}

    @cached_property
    def groups(self) -> list[tuple[int, slice | Tensor]]:
        """Texts of one length can be computed together: the length of each such group, and its rows."""
        starts: dict[int, list[int]] = {}
        for begin, end in pairwise(self.query_start.tolist()):
            if end > begin:
                starts.setdefault(end - begin, []).append(begin)
        return [(length, _rows(begins, length, self.query_start.device)) for length, begins in starts.items()]

    def near(self, length: int, window: int) -> Tensor:
        """bool [length, length]: whether two tokens see each other."""
        if (length, window) not in self._masks:
            at = torch.arange(length, device=self.query_start.device)
            self._masks[length, window] = (at[:, None] - at[None, :]).abs() < window
        return self._masks[length, window]


def _rows(begins: list[int], length: int, device: torch.device) -> slice | Tensor:
    """Of texts that begin there. A slice costs no copy."""
    if begins[-1] - begins[0] == (len(begins) - 1) * length:
        return slice(begins[0], begins[-1] + length)
    return (torch.tensor(begins, device=device)[:, None] + torch.arange(length, device=device)).flatten()
