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
        rows, columns = layer.shape
        layer.weight = None
        layer.values = layer.declare(rows, columns * self._bits // 8, dtype=torch.uint8, rows=layer.stacked)
        layer.scales = layer.declare(rows, columns // GROUP, dtype=torch.float16, rows=layer.stacked)
        layer.least = layer.declare(rows, columns // GROUP, dtype=torch.float16, rows=layer.stacked)

    def finish_loading(self, layer: Matrix) -> None:
        layer.weight = self._ops.gemm_grouped.pack(layer.values, layer.scales, layer.least, self._bits)
        layer.values = layer.scales = layer.least = None

    def apply(self, layer: Matrix, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._ops.gemm_grouped.linear(x, layer.weight, bias)

    def rows(self, layer: Matrix, indices: Tensor) -> Tensor:
        return self._ops.gemm_grouped.rows(layer.weight, indices, layer.dtype)
