"""Ordinary plans that touch what the first requests will need: kernels, thread team, memory pools."""

from collections.abc import Iterator

from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, StepPlan

_PROMPT = 16  # tokens


def warmup_plans(num_slots: int, num_blocks: int, block_size: int, max_model_len: int) -> Iterator[StepPlan]:
    """A short prompt, sampled by every way of choosing, then one more token each; the slots are free again at the end.

    It writes into the first blocks of the cache, which hold nothing yet.
    """
    length = min(_PROMPT, max_model_len - 1, num_blocks * block_size - 1)
    if length < 1:
        return
    ways = (SamplingParams(temperature=0.0), SamplingParams(top_p=0.9), SamplingParams(top_k=20))
    blocks = list(range(-(-(length + 1) // block_size)))
    params = ways[: min(num_slots, num_blocks // len(blocks))]
    slots = range(len(params))
    new = [
        NewSlot(
            slot=slot,
            request_id=f"warm-up-{slot}",
            token_ids=[0] * length,
            num_prompt_tokens=length,
            num_computed_tokens=0,
            block_ids=[block + slot * len(blocks) for block in blocks],
            sampling_params=way,
            eos_token_ids=[],
            bad_words_token_ids=[],
        )
        for slot, way in enumerate(params)
    ]
    yield StepPlan(-1, [], new, [ScheduledSlot(slot, length, 0, [], True) for slot in slots])
    yield StepPlan(-1, [], [], [ScheduledSlot(slot, 1, length, [], True) for slot in slots])
    yield StepPlan(-1, list(slots), [], [])
