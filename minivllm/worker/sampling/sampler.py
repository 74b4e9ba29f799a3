"""`Sampler`: one next token for each row of logits. A new sampling feature is a stage in its own file and a line in STAGES."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minivllm.kernels.reference.sampling import BROKEN, NOTHING_LEFT
from minivllm.messages.step import StepPlan, TokenLogprobs
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.sampling.bans import AllowedTokens, BadWords, MinTokens
from minivllm.worker.sampling.grammar_mask import GrammarMasks
from minivllm.worker.sampling.logit_bias import LogitBias
from minivllm.worker.sampling.logprobs import gather_logprobs
from minivllm.worker.sampling.penalties import Penalties
from minivllm.worker.sampling.slot_params import SlotParams
from minivllm.worker.sampling.stage import SamplingBatch, Stage

STAGES: tuple[type[Stage], ...] = (AllowedTokens, BadWords, MinTokens, LogitBias, Penalties)

NAN_LOGITS = "The model returned NaN or infinite logits for this request."
ALL_FORBIDDEN = "No token may follow: a grammar, allowed_token_ids, logit_bias, bad_words and min_tokens together forbid all."
# With the field to change, if the user can.
ERRORS = {BROKEN: (NAN_LOGITS, None), NOTHING_LEFT: (ALL_FORBIDDEN, "allowed_token_ids")}


@dataclass(slots=True)
class Sampled:
    token: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None  # then there is no token
    error_param: str | None = None  # the field of the request that the error comes from


@dataclass(slots=True)
class _Ways:
    """How to choose from each row: the kernel's arguments beside the logits."""

    params: np.ndarray
    seeds: np.ndarray
    masks: np.ndarray | None

    def of(self, rows: Any) -> "_Ways":
        return _Ways(self.params[rows], self.seeds[rows], None if self.masks is None else self.masks[rows])


class Sampler:
    def __init__(self, op: ModuleType, slots: RequestSlots, num_slots: int, seed: int | None, vocab_size: int):
        """op: the kernels' `sampling`; columns of the logits beyond `vocab_size` are padding, which is never chosen."""
        self._op = op
        self._slots = slots
        self._vocab_size = vocab_size
        self._params = SlotParams(num_slots, seed)
        self._stages = [stage() for stage in STAGES]
        self._masks = GrammarMasks()
        self._copy = torch.empty((0, 0))  # kept from step to step: the system's zeroing of new pages costs more than the copy

    def start_step(self, plan: StepPlan) -> None:
        """Before `sample`: what the plan says of slots and masks."""
        for slot in plan.freed_slots:
            self._params.remove(slot)
            for stage in self._stages:
                stage.remove(slot)
        for new in plan.new:
            self._params.add(new)
            for stage in self._stages:
                stage.add(new)
        self._masks.start_step(plan)

    def sample(self, logits: Tensor, slots: list[int]) -> list[Sampled]:
        """logits: [rows, columns] of any float type, not changed; slots: of the rows. The caller appends the tokens."""
        num_outputs = self._slots.num_outputs(slots)
        seeds = np.empty((len(slots), 2), dtype=np.int64)
        seeds[:, 0] = self._params.seeds[slots]
        seeds[:, 1] = num_outputs
        masks = self._masks.rows(slots, min(self._vocab_size, logits.shape[1]))
        ways = _Ways(self._params.numbers[slots], seeds, masks)
        changed = self._rows_to_change(slots, num_outputs)
        tokens = self._choose_apart(logits, slots, changed, ways)
        for row in changed:
            for stage in self._stages:
                stage.accept(slots[row], tokens[row])
        results = [Sampled(token) if token >= 0 else Sampled(token, None, *ERRORS[token]) for token in tokens]
        if self._params.logprobs:
            self._add_logprobs(logits, slots, results)
        return results

    def _rows_to_change(self, slots: list[int], num_outputs: list[int]) -> list[int]:
        stages = [stage for stage in self._stages if stage.in_use]
        if not stages:
            return []
        rows = enumerate(zip(slots, num_outputs, strict=True))
        return [row for row, (slot, num_output) in rows if any(stage.is_due(slot, num_output) for stage in stages)]

    def _choose(self, logits: Tensor, rows: Tensor | None, ways: _Ways) -> Tensor:
        arrays = (ways.params, ways.seeds, ways.masks)
        args = [None if array is None else torch.from_numpy(array).to(logits.device) for array in arrays]
        return self._op.choose(logits[:, : self._vocab_size], rows, *args)

    def _choose_apart(self, logits: Tensor, slots: list[int], changed: list[int], ways: _Ways) -> list[int]:
        """Some rows are chosen from after the stages have changed an fp32 copy of them, the others as they are."""
        if not changed:
            return self._choose(logits, None, ways).tolist()
        wide = self._wide_copy(logits, changed)
        outputs = [self._slots.output(slots[row]) for row in changed]
        batch = SamplingBatch(self._op, wide, [slots[row] for row in changed], outputs)
        for stage in self._stages:
            stage.apply(batch)
        tokens = np.empty(len(slots), dtype=np.int64)
        tokens[changed] = self._choose(wide, None, ways.of(changed)).numpy(force=True)
        rest = np.delete(np.arange(len(slots)), changed)
        if len(rest):
            rows = torch.from_numpy(rest).to(logits.device)
            tokens[rest] = self._choose(logits, rows, ways.of(rest)).numpy(force=True)
        return tokens.tolist()

    def _wide_copy(self, logits: Tensor, rows: list[int]) -> Tensor:
        if len(self._copy) < len(rows):
            self._copy = torch.empty((len(rows), logits.shape[1]), dtype=torch.float32, device=logits.device)
        copy = self._copy[: len(rows)]
        return copy.copy_(logits if len(rows) == len(logits) else logits[rows])

    def _add_logprobs(self, logits: Tensor, slots: list[int], results: list[Sampled]) -> None:
        rows_of: dict[int, list[int]] = {}  # by number of alternatives, so that many of one request cost the others nothing
        for row, slot in enumerate(slots):
            if slot in self._params.logprobs and results[row].error is None:
                rows_of.setdefault(self._params.logprobs[slot], []).append(row)
        for wanted, rows in rows_of.items():
            tokens = [results[row].token for row in rows]
            entries = gather_logprobs(self._op, logits, rows, tokens, wanted, self._vocab_size)
            for row, entry in zip(rows, entries, strict=True):
                results[row].logprobs = entry
