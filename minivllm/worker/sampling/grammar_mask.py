"""`GrammarMasks`: the tokens that grammars allow, as the core has found them and sent with the plan. Held by `Sampler`."""

import numpy as np
import numpy.typing as npt

from minivllm.messages.step import StepPlan

_WORD_BYTES = 8


class GrammarMasks:
    """No stage: bits are cheaper to heed while a token is chosen than to write into a copy of the logits."""

    def __init__(self) -> None:
        self._bits: dict[int, bytes] = {}

    def start_step(self, plan: StepPlan) -> None:
        self._bits = {mask.slot: mask.bits for mask in plan.masks}

    def rows(self, slots: list[int], num_columns: int) -> npt.NDArray[np.int64] | None:
        """[slots, words] as the kernel takes them, all ones where there is no grammar; None if no slot has one."""
        if self._bits.keys().isdisjoint(slots):
            return None
        size = -(-num_columns // (8 * _WORD_BYTES)) * _WORD_BYTES
        everything = b"\xff" * size
        rows = [self._bits.get(slot, everything)[:size].ljust(size, b"\0") for slot in slots]
        return np.frombuffer(bytearray().join(rows), dtype=np.int64).reshape(len(slots), -1)
