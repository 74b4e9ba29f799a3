"""`ModelRunner`: one step from plan to result. It only calls; every collaborator owns its own tensors."""

from collections.abc import Sequence

from torch import Tensor

from minivllm.messages.step import SlotResult, StepPlan, StepResult, TokenLogprobs
from minivllm.model.interface import CausalLM
from minivllm.worker.forward_inputs import ForwardInputs
from minivllm.worker.graph_runner import GraphRunner
from minivllm.worker.input_builder import InputBuilder
from minivllm.worker.prompt_logprobs import PromptLogprobs, is_finite
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.sampling.sampler import NAN_LOGITS, Sampled, Sampler


class ModelRunner:
    def __init__(self, model: CausalLM, graphs: GraphRunner, slots: RequestSlots, builder: InputBuilder, sampler: Sampler,
                 prompt_logprobs: PromptLogprobs):  # fmt: skip
        self._model = model
        self._graphs = graphs
        self._slots = slots
        self._builder = builder
        self._sampler = sampler
        self._prompt_logprobs = prompt_logprobs

    def capture(self, kv_caches: Sequence[Tensor], max_tokens: int) -> None:
        """Before the first step on new caches, unless operations are to run one by one."""
        self._graphs.capture(kv_caches, max_tokens, self._slots.block_tables.table.shape[1])

    def execute(self, plan: StepPlan, kv_caches: Sequence[Tensor]) -> StepResult:
        self._slots.apply(plan)
        self._sampler.start_step(plan)
        if not plan.scheduled:
            return StepResult(plan.step_id, [])
        inputs = self._builder.build(plan)
        hidden = self._graphs.run(inputs, kv_caches)  # [num_tokens, hidden_size]
        prompt_logprobs = self._prompt_logprobs.compute(plan, inputs, hidden)
        sampled = self._sample(inputs, hidden)
        results = [_result(s.slot, sampled.get(s.slot), prompt_logprobs.get(s.slot)) for s in plan.scheduled]
        return StepResult(plan.step_id, results)

    def _sample(self, inputs: ForwardInputs, hidden: Tensor) -> dict[int, Sampled]:
        slots = inputs.sample_slots.tolist()
        if not slots:
            return {}
        logits = self._model.compute_logits(hidden if len(slots) == len(hidden) else hidden[inputs.sample_rows])
        sampled = self._sampler.sample(logits, slots)
        for slot, result in zip(slots, sampled, strict=True):
            if result.error is None:
                self._slots.append(slot, result.token)
        return dict(zip(slots, sampled, strict=True))


def _result(slot: int, sampled: Sampled | None, prompt_logprobs: list[TokenLogprobs] | None) -> SlotResult:
    if sampled is not None and sampled.error is not None:
        return SlotResult(slot, [], error=sampled.error, error_param=sampled.error_param)
    if prompt_logprobs and not is_finite(prompt_logprobs):
        return SlotResult(slot, [], error=NAN_LOGITS)
    if sampled is None:
        return SlotResult(slot, [], prompt_logprobs=prompt_logprobs)
    logprobs = None if sampled.logprobs is None else [sampled.logprobs]
    return SlotResult(slot, [sampled.token], logprobs, prompt_logprobs)
