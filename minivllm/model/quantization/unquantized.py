"""Weights in the type of the activations."""

from torch import Tensor

from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.scheme import Scheme


class Unquantized(Scheme):
    def create_weights(self, layer: Matrix) -> None:
        layer.weight = layer.declare(layer.rows, layer.columns, dtype=layer.dtype)

    def finish_loading(self, layer: Matrix) -> None:
        layer.weight = self._ops.gemm.pack(layer.weight)

    def apply(self, layer: Matrix, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._ops.gemm.linear(x, layer.weight, bias)

    def rows(self, layer: Matrix, indices: Tensor) -> Tensor:
        return self._ops.gemm.rows(layer.weight, indices)
