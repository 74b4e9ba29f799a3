"""Tokens that a grammar allows, as the core has found them and sent with the plan."""

import numpy as np
import torch

from minivllm.messages.step import NewSlot, StepPlan
from minivllm.worker.sampling.stage import SamplingBatch, Stage


class GrammarMask(Stage[bytes]):
    """State: the bits of this step's `TokenMask`."""

    def start_step(self, plan: StepPlan) -> None:
        self._states = {mask.slot: mask.bits for mask in plan.masks}

    def make_state(self, new: NewSlot) -> None:
        return None

    def change(self, batch: SamplingBatch, users: list[tuple[int, bytes]]) -> None:
        logits = batch.logits
        bits = np.frombuffer(b"".join([mask for _, mask in users]), dtype=np.uint8).reshape(len(users), -1)
        # Columns beyond the mask are padding of the vocabulary.
        allowed = np.unpackbits(bits, axis=1, count=logits.shape[1], bitorder="little")
        forbidden = torch.from_numpy(allowed).to(logits.device) == 0
        if len(users) == len(logits):
            logits.masked_fill_(forbidden, float("-inf"))
        else:
            rows = torch.tensor([row for row, _ in users], device=logits.device)
            logits[rows] = logits[rows].masked_fill_(forbidden, float("-inf"))
