"""`PoolingRunner`: one step of a pooling model, from plan to result; the sibling of `ModelRunner`."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from minivllm.messages.pooling_output import Pooled
from minivllm.messages.step import SlotResult, StepPlan, StepResult
from minivllm.model.pooling import Pooler, PoolingState
from minivllm.worker.graph_runner import GraphRunner
from minivllm.worker.input_builder import InputBuilder
from minivllm.worker.request_slots import RequestSlots

NOT_FINITE = "The model returned NaN or infinite numbers for this request."


class PoolingRunner:
    def __init__(self, graphs: GraphRunner, slots: RequestSlots, builder: InputBuilder, pooler: Pooler):
        self._graphs = graphs
        self._slots = slots
        self._builder = builder
        self._pooler = pooler
        self._states: dict[int, PoolingState] = {}  # by slot

    def begin(self, plan: StepPlan, kv_caches: Sequence[Tensor]) -> Callable[[], StepResult]:
        """As in ModelRunner, but the step is done at once."""
        result = self._execute(plan, kv_caches)
        return lambda: result

    def _execute(self, plan: StepPlan, kv_caches: Sequence[Tensor]) -> StepResult:
        self._slots.apply(plan)
        for slot in plan.freed_slots:
            self._states.pop(slot, None)
        for new in plan.new:
            # Tokens that came from the cache are not seen here; a request that must see them has none.
            self._states[new.slot] = self._pooler.open(new.pooling_params, len(new.token_ids) - new.num_computed_tokens)
        if not plan.scheduled:
            return StepResult(plan.step_id, [])
        inputs = self._builder.build(plan)
        hidden = self._graphs.run(inputs, kv_caches)  # [num_tokens, hidden_size]
        for scheduled, (begin, end) in zip(plan.scheduled, pairwise(inputs.query_start.tolist()), strict=True):
            self._states[scheduled.slot].add(hidden[begin:end])
        ended = [s.slot for s in plan.scheduled if s.sample]
        results = dict(zip(ended, self._finish(ended), strict=True))
        return StepResult(plan.step_id, [results.get(s.slot) or SlotResult(s.slot, []) for s in plan.scheduled])

    def _finish(self, slots: list[int]) -> list[SlotResult]:
        if not slots:
            return []
        tensors = self._pooler.finish([self._states[slot] for slot in slots])
        return [_result(slot, tensor) for slot, tensor in zip(slots, tensors, strict=True)]


def _result(slot: int, tensor: Tensor) -> SlotResult:
    if not bool(torch.isfinite(tensor).all()):
        return SlotResult(slot, [], error=NOT_FINITE)
    array = tensor.cpu().contiguous().numpy()
    return SlotResult(slot, [], pooled=Pooled(array.tobytes(), list(array.shape)))
