"""Linear layers, several projections of one input merged into one product."""

import torch
from torch import Tensor

from minivllm.kernels import Ops
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.unquantized import Unquantized


class Linear(Matrix):
    """x @ weight.T + bias. With several `out_features` the weights are stacked: one product instead of several."""

    def __init__(self, ops: Ops, in_features: int, out_features: tuple[int, ...], *, bias: bool, dtype: torch.dtype):
        super().__init__(Unquantized(ops), out_features, in_features, dtype)
        self.bias = self.declare(sum(out_features), dtype=dtype, rows=out_features) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return self.scheme.apply(self, x, self.bias)
