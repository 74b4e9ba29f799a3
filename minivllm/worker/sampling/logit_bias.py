"""`logit_bias`: numbers that are added to the logits of single tokens."""

import numpy as np
import numpy.typing as npt
import torch

from minivllm.messages.step import NewSlot
from minivllm.worker.sampling.cells import Columns, cell_index
from minivllm.worker.sampling.stage import SamplingBatch, Stage

Bias = tuple[Columns, npt.NDArray[np.float32]]


class LogitBias(Stage[Bias]):
    def make_state(self, new: NewSlot) -> Bias | None:
        bias = new.sampling_params.logit_bias
        if not bias:
            return None
        return np.array(list(bias), dtype=np.int64), np.array(list(bias.values()), dtype=np.float32)

    def change(self, batch: SamplingBatch, users: list[tuple[int, Bias]]) -> None:
        cells = cell_index(batch.logits, [(row, columns) for row, (columns, _) in users])
        values = torch.from_numpy(np.concatenate([values for _, (_, values) in users])).to(batch.logits.device)
        batch.logits.view(-1)[cells] += values
