"""`GrammarMasks`: the tokens that grammars allow, as the core has found them and sent with the plan. Held by `Sampler`."""

import numpy as np
import numpy.typing as npt

from minivllm.messages.step import StepPlan

_WORD_BYTES = 8


class GrammarMasks:
    """No stage: bits are cheaper to heed while a token is chosen than to write into a copy of the logits."""

    def __init__(self) -> None:
        self._bits: dict[int, bytes] = {}
        self._rows = np.empty((0, 0), dtype=np.uint8)  # kept: the system's zeroing of new pages costs more than the copy

    def start_step(self, plan: StepPlan) -> None:
        self._bits = {mask.slot: mask.bits for mask in plan.masks}

    def rows(self, slots: list[int], num_columns: int) -> npt.NDArray[np.int64] | None:
        """[slots, words] as the kernel takes them, all ones where there is no grammar; None if no slot has one. Valid until the
        next call."""
        if self._bits.keys().isdisjoint(slots):
            return None
        size = -(-num_columns // (8 * _WORD_BYTES)) * _WORD_BYTES
        if len(self._rows) < len(slots) or self._rows.shape[1] != size:
            self._rows = np.empty((len(slots), size), dtype=np.uint8)
        rows = self._rows[: len(slots)]
        for row, slot in zip(rows, slots, strict=True):
            bits = self._bits.get(slot)
            if bits is None:
                row[:] = 0xFF
            else:
                given = np.frombuffer(bits, dtype=np.uint8)[:size]
                row[: len(given)], row[len(given) :] = given, 0
        return rows.view(np.int64)
