"""Plan and slots → `ForwardInputs`. A few array operations per step, whatever the number of sequences."""

from collections.abc import Callable
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minivllm.messages.step import StepPlan
from minivllm.model.attention.metadata import AttentionMetadata
from minivllm.worker.devices.base import Device
from minivllm.worker.forward_inputs import ForwardInputs
from minivllm.worker.request_slots import RequestSlots


class InputBuilder:
    def __init__(
        self,
        slots: RequestSlots,
        block_size: int,
        device: Device,
        has_types: bool = False,
        receive: Callable[[int], Tensor] | None = None,
    ):
        """has_types: whether the model tells the two texts of a pair apart by types of tokens. receive: gets what the pipeline
        stage before this one made of so many tokens."""
        self._slots = slots
        self._block_size = block_size
        self._device = device
        self.latest = LatestTokens(len(slots.num_tokens), device)
        self._has_types = has_types
        self._receive = receive

    def build(self, plan: StepPlan) -> ForwardInputs:
        """The plan must have been applied to the slots, and must schedule at least one token."""
        # Lists of Python's own numbers: at this size they are cheaper to build and to reduce than arrays.
        counts = [s.num_tokens for s in plan.scheduled]
        ends = [s.num_computed_tokens + s.num_tokens for s in plan.scheduled]
        starts = [0, *accumulate(counts)]
        sampled = [index for index, s in enumerate(plan.scheduled) if s.sample]
        slots = np.array([s.slot for s in plan.scheduled], dtype=np.int64)
        if counts.count(1) == len(counts):
            token_slots, positions = slots, np.array(ends, dtype=np.int64) - 1
        else:
            token_slots = np.repeat(slots, counts)
            offsets = [end - start for end, start in zip(ends, starts[1:], strict=True)]
            positions = np.arange(starts[-1]) + np.repeat(np.array(offsets, dtype=np.int64), counts)
        block_tables = self._slots.block_tables
        blocks = block_tables.table[token_slots, positions // self._block_size].astype(np.int64)
        num_blocks = -(-max(ends) // self._block_size)
        query_start = np.array(starts, dtype=np.int32)
        known = self._slots.tokens[token_slots, positions].astype(np.int64)
        input_ids, positions_there, starts_there, context_lens, tables, slot_mapping, sample_rows = self._device.send(
            [
                known,
                positions,
                query_start,
                np.array(ends, dtype=np.int32),
                block_tables.rows(slots, num_blocks),
                blocks * self._block_size + positions % self._block_size,
                np.array([starts[index + 1] - 1 for index in sampled], dtype=np.int64),
            ]
        )
        return ForwardInputs(
            input_ids=self._receive(starts[-1]) if self._receive else self._known(input_ids, known),
            positions=positions_there,
            attention=AttentionMetadata(starts_there, context_lens, tables, slot_mapping),
            sample_rows=sample_rows,
            sample_slots=slots[sampled],
            query_start=query_start,
            token_types=self._token_types(plan, token_slots, positions) if self._has_types else None,
        )

    def _known(self, input_ids: Tensor, here: npt.NDArray[np.int64]) -> Tensor:
        """here: the ids as the host knows them."""
        return self.latest.fill(input_ids) if self.latest.used and here.min() < 0 else input_ids

    def _token_types(self, plan: StepPlan, slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Tensor | None:
        starts = {s.slot: self._slots.requests[s.slot].token_type_start for s in plan.scheduled}
        if not any(starts.values()):
            return None
        second = np.array([starts[slot] or positions.max() + 1 for slot in slots.tolist()])
        return self._device.send([(positions >= second).astype(np.int64)])[0]


class LatestTokens:
    """The newest token of each slot on the device, for the step that begins before the host knows it."""

    def __init__(self, num_slots: int, device: Device):
        self.used = device.overlaps
        self._device = device
        self._tokens = torch.zeros(num_slots, dtype=torch.int64, device=device.torch_name)

    def put(self, slots: npt.NDArray[np.int64], tokens: Tensor) -> None:
        """tokens: int64, one for each of the slots. What is an error instead becomes any: nobody will ask for what follows."""
        (at,) = self._device.send([slots])
        self._tokens[at] = tokens.clamp(min=0)

    def fill(self, ids: Tensor) -> Tensor:
        """The ids; those that are on their way stand there as RequestSlots.expect has them."""
        return torch.where(ids < 0, self._tokens[(-1 - ids).clamp(min=0)], ids)
