"""Weights of 4 or 8 bits in groups of 16 or 32, as a checkpoint has them; kept packed and multiplied packed."""

from typing import NamedTuple

import torch
from torch import Tensor

from minivllm.kernels import Ops
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.scheme import Scheme

GROUP = 32


class Form(NamedTuple):
    """How groups are kept in memory, see kernels.reference.gemm_grouped."""

    bits: int  # of a value
    group: int  # values that share a scale
    codes: str | None = None  # what values stand for
    order: Tensor | None = None  # int64 [columns]: which columns of the weight stand first, second, ...; None: as they are


def pack_values(values: Tensor, form: Form) -> Tensor:
    """uint8 [rows, columns] → as gemm_grouped takes them"""
    if form.bits == 8:
        return values
    halves = values.unflatten(1, (-1, 2, form.group // 2))
    return (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)


class Packed(Scheme):
    """What has a weight packed by gemm_grouped."""

    def apply(self, layer: Matrix, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._ops.gemm_grouped.linear(x, layer.weight, bias)

    def rows(self, layer: Matrix, indices: Tensor) -> Tensor:
        return self._ops.gemm_grouped.rows(layer.weight, indices, layer.dtype)


class Grouped(Packed):
    """The checkpoint gives values, scales and least in place of a weight."""

    def __init__(self, ops: Ops, form: Form):
        super().__init__(ops)
        self._form = form

    def create_weights(self, layer: Matrix) -> None:
        form = self._form
        groups = layer.columns.per(form.group)
        layer.weight = None
        layer.values = layer.declare(layer.rows, groups.times(form.group * form.bits // 8), dtype=torch.uint8)
        layer.scales = layer.declare(layer.rows, groups, dtype=torch.float16)
        layer.least = layer.declare(layer.rows, groups, dtype=torch.float16)

    def finish_loading(self, layer: Matrix) -> None:
        form = self._form
        layer.weight = self._ops.gemm_grouped.pack(layer.values, layer.scales, layer.least, form.bits, form.codes, form.order)
        layer.values = layer.scales = layer.least = None
