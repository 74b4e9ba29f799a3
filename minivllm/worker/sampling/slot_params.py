"""`SlotParams`: the numbers by which each slot's token is chosen, one array per parameter."""

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minivllm.messages.step import NewSlot

Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class RowParams:
    """The parameters of some slots, a row each."""

    temperature: Floats  # 0: greedy
    top_k: npt.NDArray[np.int64]  # 0: off
    top_p: Floats
    min_p: Floats
    seed: npt.NDArray[np.uint64]

    def select(self, rows: npt.NDArray[np.intp]) -> "RowParams":
        return RowParams(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], self.seed[rows])


class SlotParams:
    def __init__(self, num_slots: int, seed: int | None):
        """`seed` makes the seeds of requests that bring none repeatable; None: the system's randomness."""
        self._all = RowParams(
            temperature=np.zeros(num_slots),
            top_k=np.zeros(num_slots, dtype=np.int64),
            top_p=np.ones(num_slots),
            min_p=np.zeros(num_slots),
            seed=np.zeros(num_slots, dtype=np.uint64),
        )
        self.logprobs: dict[int, int] = {}  # slot → number of alternatives, of those that want logprobs
        self._seeds: random.Random = random.SystemRandom() if seed is None else random.Random(seed)

    def add(self, new: NewSlot) -> None:
        params, slot = new.sampling_params, new.slot
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed % 2**64
        self._all.temperature[slot] = params.temperature
        self._all.top_k[slot] = params.top_k
        self._all.top_p[slot] = params.top_p
        self._all.min_p[slot] = params.min_p
        self._all.seed[slot] = seed
        if params.logprobs is None:
            self.logprobs.pop(slot, None)
        else:
            self.logprobs[slot] = params.logprobs

    def remove(self, slot: int) -> None:
        self.logprobs.pop(slot, None)

    def rows(self, slots: list[int]) -> RowParams:
        return self._all.select(np.array(slots, dtype=np.intp))
