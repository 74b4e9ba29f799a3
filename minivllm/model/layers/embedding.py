"""Token embedding, which may serve as the output head too, and a table of positions."""

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.unquantized import Unquantized


class Embedding(Matrix):
    """Rows of a table by token id. With `tied`, one packed copy of the table is embedding and output head."""

    def __init__(self, ops: Ops, vocab_size: int, hidden_size: int, *, tied: bool, dtype: torch.dtype):
        super().__init__(Unquantized(ops), (vocab_size,), hidden_size, dtype)
        self.is_multiplied = tied

    def finish_loading(self) -> None:
        if self.is_multiplied:
            super().finish_loading()

    def __call__(self, input_ids: Tensor) -> Tensor:
        """int64 [num_tokens] -> [num_tokens, hidden_size]"""
        return self.scheme.rows(self, input_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden_size] -> [rows, vocab_size]"""
        return self.scheme.apply(self, hidden, None)


class PositionEmbedding(Layer):
    """A learned vector for each position, to be added to the token's."""

    def __init__(self, ops: Ops, spec: ModelSpec, dtype: torch.dtype):
        self.weight = self.declare(spec.learned_positions, spec.hidden_size, dtype=dtype)
        self._offset = spec.position_offset
        self._rows = ops.gemm.rows

    def finish_loading(self) -> None:
        self.weight = self.weight[self._offset :]

    def __call__(self, positions: Tensor) -> Tensor:
        """int64 [num_tokens] -> [num_tokens, hidden_size]"""
        return self._rows(self.weight, positions)
