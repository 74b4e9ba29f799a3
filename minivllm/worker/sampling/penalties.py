"""Presence, frequency and repetition penalties, applied to the distinct tokens of a text, not to the whole vocabulary."""

import numpy as np
import numpy.typing as npt
import torch

from minivllm.messages.step import NewSlot
from minivllm.worker.sampling.cells import cell_index
from minivllm.worker.sampling.stage import SamplingBatch, Stage


class TokenCounts:
    """The distinct tokens of prompt and output, and how often each is in the output."""

    def __init__(self, new: NewSlot):
        params = new.sampling_params
        self.penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        prompt = new.token_ids[: new.num_prompt_tokens]
        # The prompt counts for repetition_penalty only.
        distinct = dict.fromkeys(prompt) if params.repetition_penalty != 1.0 else {}
        self._index = {token: at for at, token in enumerate(distinct)}
        self._tokens = np.array([*distinct, *([0] * 64)], dtype=np.int64)
        self._counts = np.zeros(len(self._tokens), dtype=np.float32)
        for token in new.token_ids[new.num_prompt_tokens :]:
            self.count(token)

    def count(self, token: int) -> None:
        """One more of this token in the output."""
        at = self._index.setdefault(token, len(self._index))
        if at == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._tokens[at] = token
        self._counts[at] += 1

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        return self._tokens[: len(self._index)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        return self._counts[: len(self._index)]


class Penalties(Stage[TokenCounts]):
    def make_state(self, new: NewSlot) -> TokenCounts | None:
        params = new.sampling_params
        used = params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        return TokenCounts(new) if used else None

    def accept(self, slot: int, token: int) -> None:
        if slot in self._states:
            self._states[slot].count(token)

    def change(self, batch: SamplingBatch, users: list[tuple[int, TokenCounts]]) -> None:
        device = batch.logits.device
        cells = cell_index(batch.logits, [(row, state.tokens) for row, state in users])
        counts = torch.from_numpy(np.concatenate([state.counts for _, state in users])).to(device)
        sizes = [len(state.tokens) for _, state in users]
        owners = torch.from_numpy(np.repeat(np.arange(len(users)), sizes)).to(device)
        penalties = torch.tensor([state.penalties for _, state in users], dtype=torch.float32, device=device)
        batch.op.penalize(batch.logits, cells, counts, owners, penalties)
