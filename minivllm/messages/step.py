"""One step: what the scheduler asks of the worker (`StepPlan`) and what comes back (`StepResult`).

A *slot* is the worker's persistent row for a running request, 0 ≤ slot < max_num_seqs, given by the scheduler on
admission and taken back on finish or preemption. Requests are sent whole once (`NewSlot`), later only as diffs.
"""

import msgspec

from minivllm.messages.pooling_output import Pooled
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.sampling_params import SamplingParams


class NewSlot(msgspec.Struct, array_like=True):
    """A request that enters a slot in this step, for the first time or again after a preemption."""

    slot: int
    request_id: str
    token_ids: list[int]  # all known tokens: prompt, then (after a preemption) the output so far
    num_prompt_tokens: int
    num_computed_tokens: int  # in the KV cache already (prefix cache hit)
    block_ids: list[int]  # blocks in order, for at least num_computed_tokens + this step's tokens
    sampling_params: SamplingParams
    eos_token_ids: list[int]
    bad_words_token_ids: list[list[int]]
    num_prompt_logprobs_done: int = 0  # after a preemption: prompt positions whose logprobs were delivered already
    pooling_params: PoolingParams | None = None
    token_type_start: int | None = None  # as in `EngineRequest`


class ScheduledSlot(msgspec.Struct, array_like=True):
    """Compute `num_tokens` tokens of this slot, from position `num_computed_tokens` on."""

    slot: int
    num_tokens: int
    num_computed_tokens: int
    new_block_ids: list[int]  # to append to the slot's block table (empty for a slot in `new`)
    sample: bool  # the last of these tokens is the last known one: its logits give the next token, or the text is pooled
    token: int | None = None  # the only one of these tokens, for pipeline stages that did not sample it


class TokenMasks(msgspec.Struct, array_like=True):
    """Which tokens may come next in some slots."""

    slots: list[int]
    rows: bytearray  # one for each slot, of equal lengths: bit i % 8 of byte i // 8 is token i


class StepPlan(msgspec.Struct, array_like=True):
    step_id: int
    freed_slots: list[int]  # applied first: their rows are free again
    new: list[NewSlot]
    scheduled: list[ScheduledSlot]  # every slot with work in this step, new ones included
    masks: TokenMasks | None = None  # of the slots that are sampled under a grammar

    @property
    def num_tokens(self) -> int:
        return sum(s.num_tokens for s in self.scheduled)


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Logprobs at one position: the chosen (or prompt) token first, then the top alternatives in falling order."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int  # of the first token in the vocabulary, 1 = most probable


class SlotResult(msgspec.Struct, array_like=True):
    slot: int
    token_ids: list[int]  # sampled tokens; empty for a chunk that does not reach the last known token
    logprobs: list[TokenLogprobs] | None = None  # one entry a sampled token, if asked for
    prompt_logprobs: list[TokenLogprobs] | None = None  # for the prompt positions finished in this step, in order
    error: str | None = None  # this request failed alone (e.g. NaN logits); the others are unharmed
    error_param: str | None = None  # the field that the user must change; None: the error is ours
    pooled: Pooled | None = None  # of a text that is pooled, in the place of a token


class StepResult(msgspec.Struct, array_like=True):
    step_id: int
    results: list[SlotResult]
    seconds: float | None = None  # that the worker took, where it was measured
