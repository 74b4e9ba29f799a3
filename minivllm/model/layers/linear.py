"""Linear layers, several projections of one input merged into one product."""

import torch
from torch import Tensor

from minivllm.config.shares import Share
from minivllm.kernels import Ops
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.unquantized import Unquantized


class Linear(Matrix):
    """x @ weight.T + bias. With several `out_features` the weights are stacked: one product instead of several.

    With a share of `out_features` that part of the result comes out. With a share of `in_features` that part of x goes in, and
    the sum over all ranks comes out, unless `reduce` leaves summing to the caller.
    """

    def __init__(
        self, ops: Ops, in_features: int | Share, out_features: tuple[int | Share, ...], *, bias: bool, dtype: torch.dtype,
        reduce: bool = True,
    ):  # fmt: skip
        super().__init__(Unquantized(ops), out_features, in_features, dtype)
        self.bias: Tensor | None = self.declare(self.rows, dtype=dtype) if bias else None
        is_part = not self.columns.is_whole
        self._group = ops.group if is_part and reduce else None
        self._has_bias = not is_part or ops.group.rank == 0  # in a sum over the ranks it counts once

    def finish_loading(self) -> None:
        super().finish_loading()
        if not self._has_bias:
            self.bias = None

    def __call__(self, x: Tensor) -> Tensor:
        out = self.scheme.apply(self, x, self.bias)
        return out if self._group is None else self._group.all_reduce(out)
