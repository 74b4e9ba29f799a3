"""Builds a `StepPlan` as the scheduler decides, and keeps who was in it for the day its result comes."""

from dataclasses import dataclass, field

from minivllm.core.grammar.grammar import Grammar
from minivllm.core.scheduler.request import Request
from minivllm.core.scheduler.step_costs import StepWork
from minivllm.messages.step import NewSlot, ScheduledSlot, StepPlan, TokenMasks


@dataclass(slots=True)
class PlanBuilder:
    new: list[NewSlot] = field(default_factory=list)
    scheduled: list[ScheduledSlot] = field(default_factory=list)
    members: list[tuple[Request, int]] = field(default_factory=list)  # request and its epoch, one per scheduled slot
    grammars: dict[int, Grammar] = field(default_factory=dict)  # by slot, of those that are sampled
    work: StepWork = field(default_factory=StepWork)
    tells_tokens: bool = False  # not every worker has sampled them

    def enter(self, request: Request) -> None:
        """The request takes its slot. Lists are copied: the worker appends to its own, we to ours."""
        data = request.data
        self.new.append(
            NewSlot(
                slot=request.slot,
                request_id=data.request_id,
                token_ids=request.tokens.copy(),
                num_prompt_tokens=request.num_prompt_tokens,
                num_computed_tokens=request.num_computed,
                block_ids=request.blocks.block_ids.copy(),
                sampling_params=data.sampling_params,
                eos_token_ids=data.eos_token_ids,
                bad_words_token_ids=data.bad_words_token_ids,
                num_prompt_logprobs_done=request.num_prompt_logprobs,
                pooling_params=data.pooling_params,
                token_type_start=data.token_type_start,
            )
        )

    def schedule(self, request: Request, num_tokens: int, new_block_ids: list[int]) -> None:
        """Plan `num_tokens` of the request and count them as computed."""
        sample = num_tokens == request.num_needed
        token = request.tokens[-1] if self.tells_tokens and num_tokens == 1 and sample else None
        self.scheduled.append(ScheduledSlot(request.slot, num_tokens, request.num_computed, new_block_ids, sample, token))
        self.members.append((request, request.epoch))
        self.work.add(num_tokens, request.num_computed)
        if sample and request.grammar is not None:
            self.grammars[request.slot] = request.grammar
        request.num_computed += num_tokens
        request.num_pending += sample

    def build(self, step_id: int, freed_slots: list[int]) -> StepPlan:
        return StepPlan(step_id, freed_slots, self.new, self.scheduled, self._find_masks())

    def _find_masks(self) -> TokenMasks | None:
        """All into one buffer, which the kernel reads as it is."""
        if not self.grammars:
            return None
        size = next(iter(self.grammars.values())).mask_size
        rows = bytearray(size * len(self.grammars))
        view = memoryview(rows)
        for at, grammar in enumerate(self.grammars.values()):
            grammar.write_mask(view[at * size : (at + 1) * size])
        return TokenMasks(list(self.grammars), rows)
