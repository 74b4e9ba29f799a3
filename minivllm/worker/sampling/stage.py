"""`Stage`: one step of the sampler that changes logits, with its own memory of the slots that use it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from minivllm.messages.step import NewSlot

State = TypeVar("State")


@dataclass(slots=True)
class SamplingBatch:
    op: ModuleType  # the kernels' `sampling`
    logits: Tensor  # fp32 [rows, columns], a copy: only rows that a stage may change are in a batch
    slots: list[int]  # of each row
    outputs: list[np.ndarray]  # of each row: the tokens generated so far


class Stage(ABC, Generic[State]):
    """Slots that do not use the stage have no state in it, and cost nothing."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    def add(self, new: NewSlot) -> None:
        state = self.make_state(new)
        if state is not None:
            self._states[new.slot] = state

    def remove(self, slot: int) -> None:
        self._states.pop(slot, None)

    @property
    def in_use(self) -> bool:
        return bool(self._states)

    def apply(self, batch: SamplingBatch) -> None:
        if not self._states:
            return
        users = [(row, self._states[slot]) for row, slot in enumerate(batch.slots) if slot in self._states]
        if users:
            self.change(batch, users)

    def is_due(self, slot: int, num_output: int) -> bool:
        """Whether the slot's logits may change now that it has `num_output` tokens of output."""
        return slot in self._states

    def accept(self, slot: int, token: int) -> None:
        """A token was sampled for a slot for which the stage was due."""

    @abstractmethod
    def make_state(self, new: NewSlot) -> State | None:
        """What to remember of a request; None if it does not use the stage."""

    @abstractmethod
    def change(self, batch: SamplingBatch, users: list[tuple[int, State]]) -> None:
        """Change `batch.logits` in place, in the rows of `users` only."""
