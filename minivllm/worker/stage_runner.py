"""`StageRunner`: one step of a pipeline stage that is not the last; its hidden states go on, and nothing is sampled."""

from collections.abc import Callable, Sequence

from torch import Tensor

from minivllm.distributed.pipeline import Link
from minivllm.messages.step import StepPlan, StepResult
from minivllm.worker.graph_runner import GraphRunner
from minivllm.worker.input_builder import InputBuilder
from minivllm.worker.request_slots import RequestSlots


class StageRunner:
    def __init__(self, graphs: GraphRunner, slots: RequestSlots, builder: InputBuilder, link: Link):
        self._graphs = graphs
        self._slots = slots
        self._builder = builder
        self._link = link

    def begin(self, plan: StepPlan, kv_caches: Sequence[Tensor]) -> Callable[[], StepResult]:
        """As in ModelRunner; there is nothing to wait for."""
        self._slots.apply(plan)
        if plan.scheduled:
            self._link.send(self._graphs.run(self._builder.build(plan), kv_caches))
        return lambda: StepResult(plan.step_id, [])
