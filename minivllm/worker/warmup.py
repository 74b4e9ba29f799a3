"""Ordinary plans that touch what the first requests will need: kernels, thread team, memory pools."""

from collections.abc import Iterator

from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, StepPlan

_PROMPT = 16  # tokens


def warmup_plans(
    num_slots: int, num_blocks: int, block_size: int, max_model_len: int, changed: bool = False
) -> Iterator[StepPlan]:
    """A short prompt, sampled by every way of choosing, then one more token each; the slots are free again at the end.

    It writes into the first blocks of the cache, which hold nothing yet. changed: one slot's logits are changed first, which
    takes kernels of its own for it and for the others.
    """
    length = min(_PROMPT, max_model_len - 1, num_blocks * block_size - 1)
    if length < 1:
        return
    ways = [SamplingParams(temperature=0.0), SamplingParams(top_p=0.9), SamplingParams(top_k=20)]
    if changed:
        ways.insert(1, SamplingParams(repetition_penalty=1.1, logprobs=1))
    blocks = list(range(-(-(length + 1) // block_size)))
    params = ways[: min(num_slots, num_blocks // len(blocks))]
    slots = range(len(params))
    new = [_new_slot(slot, length, [block + slot * len(blocks) for block in blocks], way) for slot, way in enumerate(params)]
    yield StepPlan(-1, [], new, [ScheduledSlot(slot, length, 0, [], True) for slot in slots])
    yield StepPlan(-1, [], [], [ScheduledSlot(slot, 1, length, [], True) for slot in slots])
    yield StepPlan(-1, list(slots), [], [])


def pooling_plans(num_slots: int, num_blocks: int, block_size: int, max_model_len: int) -> Iterator[StepPlan]:
    """A short text; a model without a cache has no blocks and needs none."""
    length = min(_PROMPT, max_model_len, num_blocks * block_size or max_model_len)
    yield from timing_plans(length, block_size)


def largest_plans(num_seqs: int, num_tokens: int, max_model_len: int, block_size: int) -> list[StepPlan]:
    """A step with as many tokens and sequences as there may be. All of them write into the first block, so that the memory it
    takes can be seen before there is a cache; what it computes means nothing."""
    num_seqs = min(num_seqs, num_tokens)
    length = min(max_model_len, num_tokens // num_seqs)
    blocks = [0] * -(-length // block_size)
    new = [_new_slot(slot, length, blocks, SamplingParams(top_p=0.9)) for slot in range(num_seqs)]
    scheduled = [ScheduledSlot(slot, length, 0, [], True) for slot in range(num_seqs)]
    return [StepPlan(-1, [], new, scheduled), StepPlan(-1, list(range(num_seqs)), [], [])]


def timing_plans(length: int, block_size: int) -> list[StepPlan]:
    """A prompt of this length by itself, then its slot is free again."""
    new = _new_slot(0, length, list(range(-(-length // block_size))), SamplingParams(temperature=0.0))
    return [StepPlan(-1, [], [new], [ScheduledSlot(0, length, 0, [], True)]), StepPlan(-1, [0], [], [])]


def _new_slot(slot: int, length: int, block_ids: list[int], params: SamplingParams) -> NewSlot:
    return NewSlot(
        slot=slot,
        request_id=f"warm-up-{slot}",
        token_ids=[0] * length,
        num_prompt_tokens=length,
        num_computed_tokens=0,
        block_ids=block_ids,
        sampling_params=params,
        eos_token_ids=[],
        bad_words_token_ids=[],
    )
