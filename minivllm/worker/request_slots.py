"""`RequestSlots`: the worker's persistent rows, one per running request. Changed by plans and by sampled tokens only."""

import numpy as np

from minivllm.messages.step import NewSlot, StepPlan
from minivllm.worker.block_tables import BlockTables


class RequestSlots:
    """Row s of `tokens` holds prompt, then output of slot s; it keeps its memory for the next request."""

    def __init__(self, num_slots: int, max_model_len: int, block_size: int):
        # One more than the longest text: with steps in flight a request is planned once after its last token.
        self.tokens = np.zeros((num_slots, max_model_len + 1), dtype=np.int32)
        self.num_tokens = [0] * num_slots
        self.block_tables = BlockTables(num_slots, -(-(max_model_len + 1) // block_size))
        self.requests: dict[int, NewSlot] = {}

    def apply(self, plan: StepPlan) -> None:
        """Free, fill and extend rows as the plan says, in this order."""
        for slot in plan.freed_slots:
            self.requests.pop(slot, None)
        for new in plan.new:
            self.requests[new.slot] = new
            self.tokens[new.slot, : len(new.token_ids)] = new.token_ids
            self.num_tokens[new.slot] = len(new.token_ids)
            self.block_tables.set(new.slot, new.block_ids)
        for scheduled in plan.scheduled:
            slot = scheduled.slot
            if scheduled.new_block_ids:
                self.block_tables.append(slot, scheduled.new_block_ids)
            if scheduled.token is not None and self.num_tokens[slot] == scheduled.num_computed_tokens:
                self.append(slot, scheduled.token)

    def append(self, slot: int, token: int) -> None:
        at = self.num_tokens[slot]
        if at < self.tokens.shape[1]:
            self.tokens[slot, at] = token
            self.num_tokens[slot] = at + 1

    def expect(self, slot: int) -> int:
        """A token is on its way; its place in the row, which until then says which slot is meant: -1 - slot."""
        at = self.num_tokens[slot]
        self.append(slot, -1 - slot)
        return at

    def settle(self, slot: int, at: int, token: int) -> None:
        if at < self.tokens.shape[1]:
            self.tokens[slot, at] = token

    def output(self, slot: int) -> np.ndarray:
        """Output tokens of the slot so far, a view."""
        return self.tokens[slot, self.requests[slot].num_prompt_tokens : self.num_tokens[slot]]

    def num_outputs(self, slots: list[int]) -> list[int]:
        """How many output tokens each of the slots has so far."""
        return [self.num_tokens[slot] - self.requests[slot].num_prompt_tokens for slot in slots]
