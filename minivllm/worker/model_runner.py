"""`ModelRunner`: one step from plan to result. It only calls; every collaborator owns its own tensors."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from minivllm.messages.step import NewSlot, SlotResult, StepPlan, StepResult, TokenLogprobs
from minivllm.model.interface import CausalLM
from minivllm.worker.forward_inputs import ForwardInputs
from minivllm.worker.graph_runner import GraphRunner
from minivllm.worker.input_builder import InputBuilder
from minivllm.worker.prompt_logprobs import PromptLogprobs, is_finite
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.sampling.sampler import NAN_LOGITS, Choice, Sampled, Sampler


class ModelRunner:
    def __init__(self, model: CausalLM, graphs: GraphRunner, slots: RequestSlots, builder: InputBuilder, sampler: Sampler,
                 prompt_logprobs: PromptLogprobs):  # fmt: skip
        self._model = model
        self._graphs = graphs
        self._slots = slots
        self._builder = builder
        self._sampler = sampler
        self._prompt_logprobs = prompt_logprobs
        self._begun: deque[_Step] = deque()  # and not finished

    def begin(self, plan: StepPlan, kv_caches: Sequence[Tensor]) -> Callable[[], StepResult]:
        """One step; the function waits for its result. More steps may begin before: tokens that they need and that the host
        does not know yet are taken from the device."""
        self._slots.apply(plan)
        self._sampler.start_step(plan)
        if not plan.scheduled:
            return lambda: StepResult(plan.step_id, [])
        inputs = self._builder.build(plan)
        hidden = self._graphs.run(inputs, kv_caches)  # [num_tokens, hidden_size]
        step = _Step(plan, self._prompt_logprobs.compute(plan, inputs, hidden))
        if len(inputs.sample_slots):
            self._sample(step, inputs, hidden)
        self._begun.append(step)
        return lambda: self._finish(step)

    def _sample(self, step: "_Step", inputs: ForwardInputs, hidden: Tensor) -> None:
        slots = inputs.sample_slots.tolist()
        logits = self._model.compute_logits(hidden if len(slots) == len(hidden) else hidden[inputs.sample_rows])
        step.choice = self._sampler.sample(logits, slots, self._settle)
        if self._builder.latest.used:
            self._builder.latest.put(inputs.sample_slots, step.choice.tokens)
            step.expected = [(self._slots.requests[slot], self._slots.expect(slot)) for slot in slots]

    def _finish(self, step: "_Step") -> StepResult:
        while step.result is None:
            self._finish_first()
        return step.result

    def _settle(self) -> None:
        """Learn all tokens that are on their way."""
        while self._begun:
            self._finish_first()

    def _finish_first(self) -> None:
        step = self._begun.popleft()
        sampled: dict[int, Sampled] = {}
        if step.choice is not None:
            gone = {request.slot for request, _ in step.expected if self._slots.requests.get(request.slot) is not request}
            sampled = dict(zip(step.choice.slots, self._sampler.finish(step.choice, gone), strict=True))
            for request, at in step.expected:
                if request.slot not in gone:
                    self._slots.settle(request.slot, at, max(0, sampled[request.slot].token))
            if not step.expected:
                for slot, result in sampled.items():
                    if result.error is None:
                        self._slots.append(slot, result.token)
        results = [_result(s.slot, sampled.get(s.slot), step.prompt_logprobs.get(s.slot)) for s in step.plan.scheduled]
        step.result = StepResult(step.plan.step_id, results)


@dataclass(slots=True)
class _Step:
    """One that has begun."""

    plan: StepPlan
    prompt_logprobs: dict[int, list[TokenLogprobs]]
    choice: Choice | None = None
    expected: Sequence[tuple[NewSlot, int]] = ()  # whose tokens they are, and their places, if steps overlap
    result: StepResult | None = None


def _result(slot: int, sampled: Sampled | None, prompt_logprobs: list[TokenLogprobs] | None) -> SlotResult:
    if sampled is not None and sampled.error is not None:
        return SlotResult(slot, [], error=sampled.error, error_param=sampled.error_param)
    if prompt_logprobs and not is_finite(prompt_logprobs):
        return SlotResult(slot, [], error=NAN_LOGITS)
    if sampled is None:
        return SlotResult(slot, [], prompt_logprobs=prompt_logprobs)
    logprobs = None if sampled.logprobs is None else [sampled.logprobs]
    return SlotResult(slot, [sampled.token], logprobs, prompt_logprobs)
