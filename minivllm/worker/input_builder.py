"""Plan and slots → `ForwardInputs`. A few array operations per step, whatever the number of sequences."""

import numpy as np
import torch

from minivllm.messages.step import StepPlan
from minivllm.model.attention.metadata import AttentionMetadata
from minivllm.worker.forward_inputs import ForwardInputs
from minivllm.worker.request_slots import RequestSlots


class InputBuilder:
    def __init__(self, slots: RequestSlots, block_size: int, device: str):
        self._slots = slots
        self._block_size = block_size
        self._device = device

    def build(self, plan: StepPlan) -> ForwardInputs:
        """The plan must have been applied to the slots, and must schedule at least one token."""
        scheduled = np.array([(s.slot, s.num_tokens, s.num_computed_tokens, s.sample) for s in plan.scheduled], dtype=np.int64)
        slots, counts, computed, sample = scheduled.T
        query_start = np.zeros(len(slots) + 1, dtype=np.int32)
        np.cumsum(counts, out=query_start[1:])
        sequence = np.repeat(np.arange(len(slots)), counts)  # of each token
        positions = np.arange(query_start[-1]) + (computed - query_start[:-1])[sequence]
        token_slots = slots[sequence]
        context_lens = computed + counts
        block_tables = self._slots.block_tables
        blocks = block_tables.table[token_slots, positions // self._block_size].astype(np.int64)
        sampled = np.flatnonzero(sample)
        num_blocks = -(-int(context_lens.max()) // self._block_size)
        return ForwardInputs(
            input_ids=self._tensor(self._slots.tokens[token_slots, positions].astype(np.int64)),
            positions=self._tensor(positions),
            attention=AttentionMetadata(
                query_start=self._tensor(query_start),
                context_lens=self._tensor(context_lens.astype(np.int32)),
                block_tables=self._tensor(block_tables.rows(slots, num_blocks)),
                slot_mapping=self._tensor(blocks * self._block_size + positions % self._block_size),
            ),
            sample_rows=self._tensor(query_start[sampled + 1].astype(np.int64) - 1),
            sample_slots=slots[sampled],
            query_start=query_start,
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
