"""`PromptLogprobs`: logprobs of prompt tokens, chunk by chunk, in row blocks that bound the memory for logits."""

import math
from types import ModuleType

from torch import Tensor

from minivllm.messages.step import ScheduledSlot, StepPlan, TokenLogprobs
from minivllm.model.interface import CausalLM
from minivllm.worker.forward_inputs import ForwardInputs
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.sampling.logprobs import gather_logprobs

_MAX_CELLS = 1 << 22  # logits at a time: 8 MiB in bf16


class PromptLogprobs:
    """The hidden state of prompt position p tells of the token at p + 1, so a prompt of n tokens has n - 1 entries."""

    def __init__(self, op: ModuleType, slots: RequestSlots, model: CausalLM, vocab_size: int):
        """op: the kernels' `sampling`; columns of the logits beyond `vocab_size` are padding."""
        self._op = op
        self._slots = slots
        self._model = model
        self._vocab_size = vocab_size
        self._rows = max(1, _MAX_CELLS // vocab_size)

    def compute(self, plan: StepPlan, inputs: ForwardInputs, hidden: Tensor) -> dict[int, list[TokenLogprobs]]:
        """slot → entries of the positions finished in this step, for the slots that want them."""
        found: dict[int, list[TokenLogprobs]] = {}
        for scheduled, row in zip(plan.scheduled, inputs.query_start[:-1].tolist(), strict=True):
            request = self._slots.requests[scheduled.slot]
            wanted = request.sampling_params.prompt_logprobs
            if wanted is None:
                continue
            first, last = self._positions(scheduled)
            if first < last:
                row += first - scheduled.num_computed_tokens
                targets = self._slots.tokens[scheduled.slot, first + 1 : last + 1].tolist()
                found[scheduled.slot] = self._of_rows(hidden[row : row + last - first], targets, wanted)
        return found

    def _positions(self, scheduled: ScheduledSlot) -> tuple[int, int]:
        request = self._slots.requests[scheduled.slot]
        begin = scheduled.num_computed_tokens
        end = min(begin + scheduled.num_tokens, request.num_prompt_tokens - 1)
        return max(begin, request.num_prompt_logprobs_done), end

    def _of_rows(self, hidden: Tensor, targets: list[int], wanted: int) -> list[TokenLogprobs]:
        entries: list[TokenLogprobs] = []
        for begin in range(0, len(targets), self._rows):
            end = begin + self._rows
            logits, some = self._model.compute_logits(hidden[begin:end]), targets[begin:end]
            entries += gather_logprobs(self._op, logits, list(range(len(some))), some, wanted, self._vocab_size)
        return entries


def is_finite(entries: list[TokenLogprobs]) -> bool:
    return all(math.isfinite(entry.logprobs[0]) for entry in entries)
