"""`Sampler`: one next token for each row of logits. A new sampling feature is a stage in its own file and a line in STAGES."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minivllm.kernels.reference.sampling import BROKEN, NOTHING_LEFT
from minivllm.messages.step import StepPlan, TokenLogprobs
from minivllm.worker.devices.base import Device
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.sampling.bans import AllowedTokens, BadWords, MinTokens
from minivllm.worker.sampling.grammar_mask import GrammarMasks
from minivllm.worker.sampling.logit_bias import LogitBias
from minivllm.worker.sampling.logprobs import entries_of, find_logprobs
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
    def __init__(self, op: ModuleType, slots: RequestSlots, device: Device, num_slots: int, seed: int | None, vocab_size: int):
        """op: the kernels' `sampling`; columns of the logits beyond `vocab_size` are padding, which is never chosen."""
        self._op = op
        self._slots = slots
        self._device = device
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

    def sample(self, logits: Tensor, slots: list[int], settle: Callable[[], None]) -> "Choice":
        """logits: [rows, columns] of any float type, not changed; slots: of the rows. `settle` is called if tokens that are on
        their way must be known first. The caller appends the tokens."""
        num_outputs = self._slots.num_outputs(slots)
        seeds = np.empty((len(slots), 2), dtype=np.int64)
        seeds[:, 0] = self._params.seeds[slots]
        seeds[:, 1] = num_outputs
        masks = self._masks.rows(slots, min(self._vocab_size, logits.shape[1]))
        ways = _Ways(self._params.numbers[slots], seeds, masks)
        changed = self._rows_to_change(slots, num_outputs)
        if changed:
            settle()
        tokens = self._choose_apart(logits, slots, changed, ways)
        groups = self._logprob_groups(slots) if self._params.logprobs else []
        found = [tensor for group in groups for tensor in self._find_logprobs(logits, tokens, *group)]
        return Choice(tokens, slots, changed, [rows for _, rows in groups], self._device.fetch([tokens, *found]))

    def finish(self, choice: "Choice", gone: AbstractSet[int]) -> list[Sampled]:
        """What was chosen, once. `gone`: slots that belong to other requests by now, or to none."""
        chosen, *found = choice.fetched()
        tokens = chosen.tolist()
        for row in choice.changed:
            if choice.slots[row] not in gone:
                for stage in self._stages:
                    stage.accept(choice.slots[row], tokens[row])
        results = [Sampled(token) if token >= 0 else Sampled(token, None, *ERRORS[token]) for token in tokens]
        for at, rows in enumerate(choice.groups):
            for row, entry in zip(rows, entries_of(found[3 * at : 3 * at + 3]), strict=True):
                results[row].logprobs = None if results[row].error else entry
        return results

    def _rows_to_change(self, slots: list[int], num_outputs: list[int]) -> list[int]:
        stages = [stage for stage in self._stages if stage.in_use]
        if not stages:
            return []
        rows = enumerate(zip(slots, num_outputs, strict=True))
        return [row for row, (slot, num_output) in rows if any(stage.is_due(slot, num_output) for stage in stages)]

    def _choose(self, logits: Tensor, rows: Tensor | None, ways: _Ways) -> Tensor:
        params, seeds, *masks = self._device.send([ways.params, ways.seeds, *([] if ways.masks is None else [ways.masks])])
        return self._op.choose(logits[:, : self._vocab_size], rows, params, seeds, *masks)

    def _choose_apart(self, logits: Tensor, slots: list[int], changed: list[int], ways: _Ways) -> Tensor:
        """Some rows are chosen from after the stages have changed an fp32 copy of them, the others as they are."""
        if not changed:
            return self._choose(logits, None, ways)
        wide = self._wide_copy(logits, changed)
        outputs = [self._slots.output(slots[row]) for row in changed]
        batch = SamplingBatch(self._op, wide, [slots[row] for row in changed], outputs)
        for stage in self._stages:
            stage.apply(batch)
        rest = np.delete(np.arange(len(slots)), changed)
        if not len(rest):
            return self._choose(wide, None, ways)
        rows, others = self._device.send([np.array(changed), rest])
        tokens = torch.empty(len(slots), dtype=torch.int64, device=logits.device)
        tokens[rows] = self._choose(wide, None, ways.of(changed))
        tokens[others] = self._choose(logits, others, ways.of(rest))
        return tokens

    def _wide_copy(self, logits: Tensor, rows: list[int]) -> Tensor:
        if len(self._copy) < len(rows):
            self._copy = torch.empty((len(rows), logits.shape[1]), dtype=torch.float32, device=logits.device)
        copy = self._copy[: len(rows)]
        return copy.copy_(logits if len(rows) == len(logits) else logits[rows])

    def _logprob_groups(self, slots: list[int]) -> list[tuple[int, list[int]]]:
        """Rows by number of alternatives, so that many of one request cost the others nothing."""
        rows_of: dict[int, list[int]] = {}
        for row, slot in enumerate(slots):
            if slot in self._params.logprobs:
                rows_of.setdefault(self._params.logprobs[slot], []).append(row)
        return list(rows_of.items())

    def _find_logprobs(self, logits: Tensor, tokens: Tensor, wanted: int, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        (at,) = self._device.send([np.array(rows)])
        # What is no token but an error has no entry; any token will do.
        return find_logprobs(self._op, logits, at, tokens[at].clamp(min=0), wanted, self._vocab_size)


@dataclass(slots=True)
class Choice:
    """Tokens that were chosen, perhaps on their way to the host."""

    tokens: Tensor  # int64 [rows], on the device; BROKEN and NOTHING_LEFT among them
    slots: list[int]
    changed: list[int]  # rows that stages have changed
    groups: list[list[int]]  # rows that want logprobs, as they were found
    fetched: Callable[[], list[Tensor]]  # the tokens, then three tensors for each group
