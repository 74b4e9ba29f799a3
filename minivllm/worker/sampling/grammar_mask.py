"""`GrammarMasks`: the tokens that grammars allow, as the core has found them and sent with the plan. Held by `Sampler`."""

import numpy as np
import numpy.typing as npt

from minivllm.messages.step import StepPlan

_WORD_BITS = 64


class GrammarMasks:
    """No stage: bits are cheaper to heed while a token is chosen than to write into a copy of the logits."""

    def __init__(self) -> None:
        self._slots: list[int] = []
        self._rows = np.empty((0, 0), dtype=np.int64)  # of `_slots`

    def start_step(self, plan: StepPlan) -> None:
        self._slots = [] if plan.masks is None else plan.masks.slots
        if plan.masks is not None:
            self._rows = np.frombuffer(plan.masks.rows, dtype=np.int64).reshape(len(self._slots), -1)

    def rows(self, slots: list[int], num_columns: int) -> npt.NDArray[np.int64] | None:
        """[slots, words] as the kernel takes them, all ones where there is no grammar; None if no slot has one."""
        num_words = -(-num_columns // _WORD_BITS)
        if slots == self._slots and self._rows.shape[1] == num_words:
            return self._rows
        places = {slot: place for place, slot in enumerate(self._slots)}
        if places.keys().isdisjoint(slots):
            return None
        rows = np.zeros((len(slots), num_words), dtype=np.int64)
        for row, slot in zip(rows, slots, strict=True):
            if slot in places:
                given = self._rows[places[slot], :num_words]
                row[: len(given)] = given
            else:
                row[:] = -1
        return rows
