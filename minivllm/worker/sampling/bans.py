"""Tokens that may not come: all but `allowed_token_ids`, endings before `min_tokens`, the last token of a bad word."""

import numpy as np
import torch

from minivllm.messages.step import NewSlot
from minivllm.worker.sampling.cells import Columns, cell_index, forbid
from minivllm.worker.sampling.stage import SamplingBatch, Stage


class AllowedTokens(Stage[Columns]):
    def make_state(self, new: NewSlot) -> Columns | None:
        allowed = new.sampling_params.allowed_token_ids
        return None if allowed is None else np.unique(np.array(allowed, dtype=np.int64))

    def change(self, batch: SamplingBatch, users: list[tuple[int, Columns]]) -> None:
        cells = cell_index(batch.logits, users)
        flat = batch.logits.view(-1)
        kept = flat[cells]
        batch.logits[torch.tensor([row for row, _ in users], device=flat.device)] = float("-inf")
        flat[cells] = kept


class MinTokens(Stage[tuple[int, Columns]]):
    """State: the least number of tokens, and the ids that could end the text."""

    def make_state(self, new: NewSlot) -> tuple[int, Columns] | None:
        params = new.sampling_params
        # ignore_eos is no matter here: min_tokens keeps the end token from being sampled at all, as in vLLM.
        endings = {*new.eos_token_ids, *params.stop_token_ids}
        if params.min_tokens == 0 or not endings:
            return None
        return params.min_tokens, np.array(sorted(endings), dtype=np.int64)

    def is_due(self, slot: int, num_output: int) -> bool:
        return slot in self._states and num_output < self._states[slot][0]

    def change(self, batch: SamplingBatch, users: list[tuple[int, tuple[int, Columns]]]) -> None:
        early = [(row, endings) for row, (least, endings) in users if len(batch.outputs[row]) < least]
        if early:
            forbid(batch.logits, early)


class BadWords(Stage[list[list[int]]]):
    """A bad word's last token is banned where the output ends with its other tokens."""

    def make_state(self, new: NewSlot) -> list[list[int]] | None:
        return [word for word in new.bad_words_token_ids if word] or None

    def change(self, batch: SamplingBatch, users: list[tuple[int, list[list[int]]]]) -> None:
        banned = []
        for row, words in users:
            longest = max(len(word) for word in words) - 1
            recent = batch.outputs[row][-longest:].tolist() if longest else []
            last = {word[-1] for word in words if len(word) == 1 or recent[1 - len(word) :] == word[:-1]}
            if last:
                banned.append((row, np.array(sorted(last), dtype=np.int64)))
        if banned:
            forbid(batch.logits, banned)
