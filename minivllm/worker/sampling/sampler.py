"""`Sampler`: one next token for each row of logits. A new sampling feature is a stage in its own file and a line in STAGES."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minivllm.messages.step import NewSlot, TokenLogprobs
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.sampling.bans import AllowedTokens, BadWords, MinTokens
from minivllm.worker.sampling.blocked import argmax, to_blocked
from minivllm.worker.sampling.logit_bias import LogitBias
from minivllm.worker.sampling.logprobs import gather_logprobs
from minivllm.worker.sampling.penalties import Penalties
from minivllm.worker.sampling.slot_params import SlotParams
from minivllm.worker.sampling.stage import SamplingBatch, Stage
from minivllm.worker.sampling.truncation import sample

STAGES: tuple[type[Stage], ...] = (AllowedTokens, BadWords, MinTokens, LogitBias, Penalties)

NAN_LOGITS = "The model returned NaN or infinite logits for this request."
ALL_FORBIDDEN = "No token may follow: allowed_token_ids, logit_bias, bad_words and min_tokens together forbid every token."


@dataclass(slots=True)
class Sampled:
    token: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None  # then there is no token


class Sampler:
    def __init__(self, slots: RequestSlots, num_slots: int, seed: int | None):
        self._slots = slots
        self._params = SlotParams(num_slots, seed)
        self._stages = [stage() for stage in STAGES]

    def add(self, new: NewSlot) -> None:
        self._params.add(new)
        for stage in self._stages:
            stage.add(new)

    def remove(self, slot: int) -> None:
        self._params.remove(slot)
        for stage in self._stages:
            stage.remove(slot)

    def sample(self, logits: Tensor, slots: list[int]) -> list[Sampled]:
        """logits: [rows, vocab_size] of any float type, may be changed; slots: of the rows. The caller appends the tokens."""
        vocab_size = logits.shape[1]
        blocked = to_blocked(logits)
        with_logprobs = [row for row, slot in enumerate(slots) if slot in self._params.logprobs]
        raw = blocked.index_select(0, torch.tensor(with_logprobs, device=logits.device)) if with_logprobs else None
        outputs = [self._slots.output(slot) for slot in slots]
        batch = SamplingBatch(blocked.view(len(slots), -1), slots, outputs)
        for stage in self._stages:
            stage.apply(batch)
        maxima = blocked.amax(-1)
        results = _check_rows(maxima)
        tokens = self._choose(blocked, maxima, batch, results).tolist()
        for slot, result, token in zip(slots, results, tokens, strict=True):
            result.token = token
            if result.error is None:
                for stage in self._stages:
                    stage.accept(slot, token)
        if raw is not None:
            wanted = [self._params.logprobs[slots[row]] for row in with_logprobs]
            given = gather_logprobs(raw, [tokens[row] for row in with_logprobs], wanted, vocab_size)
            for row, logprobs in zip(with_logprobs, given, strict=True):
                results[row].logprobs = logprobs
        return results

    def _choose(self, blocked: Tensor, maxima: Tensor, batch: SamplingBatch, results: list[Sampled]) -> Tensor:
        params = self._params.rows(batch.slots)
        usable = np.array([result.error is None for result in results])
        drawn = np.flatnonzero((params.temperature > 0) & usable)
        positions = np.array([len(output) for output in batch.outputs], dtype=np.int64)
        if len(drawn) == len(results):
            return sample(blocked, maxima, params, positions)
        tokens = argmax(blocked, maxima)
        if len(drawn):
            at = torch.from_numpy(drawn).to(blocked.device)
            tokens[at] = sample(blocked.index_select(0, at), maxima[at], params.select(drawn), positions[drawn])
        return tokens


def _check_rows(maxima: Tensor) -> list[Sampled]:
    """A result for each row, with an error where there is nothing to choose from."""
    best = maxima.amax(-1)
    if bool(best.isfinite().all()):
        return [Sampled(-1) for _ in range(len(best))]
    return [Sampled(-1, error=_row_error(value)) for value in best.tolist()]


def _row_error(best: float) -> str | None:
    if best == float("-inf"):
        return ALL_FORBIDDEN
    return None if np.isfinite(best) else NAN_LOGITS
