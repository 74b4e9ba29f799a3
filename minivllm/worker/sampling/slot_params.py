"""`SlotParams`: the numbers by which each slot's token is chosen, a row per slot."""

import random

import numpy as np

from minivllm.messages.step import NewSlot


class SlotParams:
    def __init__(self, num_slots: int, seed: int | None):
        """`seed` makes the seeds of requests that bring none repeatable; None: the system's randomness."""
        self.numbers = np.zeros((num_slots, 4))  # temperature, top_k, top_p, min_p, as the kernel takes them
        self.seeds = np.zeros(num_slots, dtype=np.int64)
        self.logprobs: dict[int, int] = {}  # slot → number of alternatives, of those that want logprobs
        self._seeds: random.Random = random.SystemRandom() if seed is None else random.Random(seed)

    def add(self, new: NewSlot) -> None:
        params, slot = new.sampling_params, new.slot
        self.numbers[slot] = params.temperature, params.top_k, params.top_p, params.min_p
        self.seeds[slot] = self._seeds.getrandbits(64) - 2**63 if params.seed is None else params.seed
        self.remove(slot)
        if params.logprobs is not None:
            self.logprobs[slot] = params.logprobs

    def remove(self, slot: int) -> None:
        self.logprobs.pop(slot, None)
