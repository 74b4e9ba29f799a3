"""Linear layers, several projections of one input merged into one product."""

import torch
from torch import Tensor

from minivllm.kernels import Ops
from minivllm.model.layers.layer import Layer


class Linear(Layer):
    """x @ weight.T + bias. With several `out_features` the weights are stacked: one product instead of several."""

    def __init__(self, ops: Ops, in_features: int, out_features: tuple[int, ...], *, bias: bool, dtype: torch.dtype):
        self._ops = ops.gemm
        total = sum(out_features)
        self.weight = self.declare(total, in_features, dtype=dtype, rows=out_features)
        self.bias = self.declare(total, dtype=dtype, rows=out_features) if bias else None

    def finish_loading(self) -> None:
        self.weight = self._ops.pack(self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.linear(x, self.weight, self.bias)
