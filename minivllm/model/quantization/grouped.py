"""Weights of 4 or 8 bits in groups of 32, as a GGUF file has them; kept packed and multiplied packed."""

import torch
from torch import Tensor

from minivllm.kernels import Ops
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.scheme import Scheme

GROUP = 32


class Grouped(Scheme):
    """The checkpoint gives values, scales and least in place of a weight; see kernels.reference.gemm_grouped."""

    def __init__(self, ops: Ops, bits: int):
        super().__init__(ops)
        self._bits = bits

    def create_weights(self, layer: Matrix) -> None:
        groups = layer.columns.per(GROUP)
        layer.weight = None
        layer.values = layer.declare(layer.rows, groups.times(GROUP * self._bits // 8), dtype=torch.uint8)
        layer.scales = layer.declare(layer.rows, groups, dtype=torch.float16)
        layer.least = layer.declare(layer.rows, groups, dtype=torch.float16)

    def finish_loading(self, layer: Matrix) -> None:
        layer.weight = self._ops.gemm_grouped.pack(layer.values, layer.scales, layer.least, self._bits)
        layer.values = layer.scales = layer.least = None

    def apply(self, layer: Matrix, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._ops.gemm_grouped.linear(x, layer.weight, bias)

    def rows(self, layer: Matrix, indices: Tensor) -> Tensor:
        return self._ops.gemm_grouped.rows(layer.weight, indices, layer.dtype)
