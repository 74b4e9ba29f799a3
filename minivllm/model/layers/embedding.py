"""Token embedding, which may serve as the output head too."""

import torch
from torch import Tensor

from minivllm.kernels import Ops
from minivllm.model.layers.layer import Layer


class Embedding(Layer):
    """Rows of a table by token id. With `tied`, one packed copy of the table is embedding and output head."""

    def __init__(self, ops: Ops, vocab_size: int, hidden_size: int, *, tied: bool, dtype: torch.dtype):
        self._ops = ops.gemm
        self._tied = tied
        self.weight = self.declare(vocab_size, hidden_size, dtype=dtype)

    def finish_loading(self) -> None:
        if self._tied:
            self.weight = self._ops.pack(self.weight)

    def __call__(self, input_ids: Tensor) -> Tensor:
        """int64 [num_tokens] -> [num_tokens, hidden_size]"""
        return self._ops.rows(self.weight, input_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden_size] -> [rows, vocab_size]"""
        return self._ops.linear(hidden, self.weight)
