"""Token embedding, which may serve as the output head too, and a table of positions."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import Share
from minivllm.kernels import Ops
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.unquantized import Unquantized


class Embedding(Matrix):
    """Rows of a table by token id. With `tied`, one packed copy of the table is embedding and output head.

    With a share of the vocabulary, the ranks fetch what each has, and the head gives the logits of the share.
    """

    def __init__(self, ops: Ops, vocab: int | Share, hidden_size: int, *, tied: bool, dtype: torch.dtype):
        super().__init__(Unquantized(ops), (vocab,), hidden_size, dtype)
        self.is_multiplied = tied
        self.share_read = 1.0 if tied else 0.0
        self._ops = ops

    def finish_loading(self) -> None:
        if self.is_multiplied:
            super().finish_loading()

    def __call__(self, input_ids: Tensor) -> Tensor:
        """int64 [num_tokens] -> [num_tokens, hidden_size]"""
        (own,) = self.rows
        if own.is_whole:
            return self.scheme.rows(self, input_ids)
        ops = self._ops.elementwise
        found = self.scheme.rows(self, ops.indices_in(input_ids, own.begin, own.end))
        return self._ops.group.all_reduce(ops.clear_outside(found, input_ids, own.begin, own.end))

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden_size] -> [rows, size of the share]"""
        return self.scheme.apply(self, hidden, None)


class PositionEmbedding(Layer):
    """A learned vector for each position, to be added to the token's."""

    def __init__(self, ops: Ops, spec: ModelSpec, dtype: torch.dtype):
        self.weight = self.declare(spec.learned_positions, spec.hidden_size, dtype=dtype)
        self.share_read = 0.0
        self._offset = spec.position_offset
        self._rows = ops.gemm.rows

    def finish_loading(self) -> None:
        self.weight = self.weight[self._offset :]

    def __call__(self, positions: Tensor) -> Tensor:
        """int64 [num_tokens] -> [num_tokens, hidden_size]"""
        return self._rows(self.weight, positions)
