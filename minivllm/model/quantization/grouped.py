"""Weights of 4 or 8 bits in groups of 16 or 32, as a checkpoint has them; kept packed and multiplied packed. Where a device
multiplies 8-bit floats (e4m3) as they are, these are left so."""

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from minivllm.config.shares import Share
from minivllm.kernels import Ops
from minivllm.kernels.codes import E4M3_UNIT
from minivllm.kernels.reference.gemm_fp8 import Fp8Weight
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.scheme import Scheme

GROUP = 32


class Form(NamedTuple):
    """How groups are kept in memory, see kernels.reference.gemm_grouped."""

    bits: int  # of a value
    group: int  # values that share a scale
    codes: str | None = None  # what values stand for
    order: Tensor | None = None  # int64 [columns]: which columns of the weight stand first, second, ...; None: as they are

    def width(self, part: str, columns: int) -> int:
        """Columns of values (in bytes), or of scales or least, of a weight that has so many."""
        return columns * self.bits // 8 if part == "values" else columns // self.group

    def parts(self, columns: Share) -> dict[str, tuple[Share, torch.dtype]]:
        """What stands for a weight with these columns: columns and type of each."""
        groups = columns.per(self.group)
        values = groups.times(self.group * self.bits // 8)
        return {"values": (values, torch.uint8), "scales": (groups, torch.float16), "least": (groups, torch.float16)}


def pack_values(values: Tensor, form: Form) -> Tensor:
    """uint8 [rows, columns] → as gemm_grouped takes them"""
    if form.bits == 8:
        return values
    halves = values.unflatten(1, (-1, 2, form.group // 2))
    return (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)


class Packed(Scheme):
    """What has a weight packed by gemm_grouped, or by gemm_fp8."""

    def pack(self, layer: Matrix, values: Tensor, scales: Tensor, least: Tensor, form: Form) -> None:
        """As gemm_grouped takes them."""
        native = form.codes == "e4m3" and form.order is None and self._ops.gemm_fp8.is_native(values.device)
        shared = _of_rows_or_blocks(scales) if native else None
        if shared is None:
            layer.weight = self._ops.gemm_grouped.pack(values, scales, least, form.bits, form.codes, form.order)
        else:
            layer.weight = self._ops.gemm_fp8.pack(values.view(torch.float8_e4m3fn), shared.float() * E4M3_UNIT, layer.dtype)

    def apply(self, layer: Matrix, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._op(layer).linear(x, layer.weight, bias)

    def rows(self, layer: Matrix, indices: Tensor) -> Tensor:
        return self._op(layer).rows(layer.weight, indices, layer.dtype)

    def _op(self, layer: Matrix) -> ModuleType:
        return self._ops.gemm_fp8 if isinstance(layer.weight, Fp8Weight) else self._ops.gemm_grouped


class Grouped(Packed):
    """The checkpoint gives values, scales and least in place of a weight."""

    def __init__(self, ops: Ops, form: Form):
        super().__init__(ops)
        self._form = form

    def create_weights(self, layer: Matrix) -> None:
        layer.weight = None
        for part, (columns, dtype) in self._form.parts(layer.columns).items():
            setattr(layer, part, layer.declare(layer.rows, columns, dtype=dtype))

    def finish_loading(self, layer: Matrix) -> None:
        self.pack(layer, layer.values, layer.scales, layer.least, self._form)
        layer.values = layer.scales = layer.least = None


def _of_rows_or_blocks(scales: Tensor) -> Tensor | None:
    """[rows, groups of 32] → [rows, 1] or [rows, blocks of 128 columns], if that is how groups share them."""
    if bool((scales == scales[:, :1]).all()):
        return scales[:, :1]
    blocks = scales[:, ::4]
    return blocks if blocks.repeat_interleave(4, dim=1)[:, : scales.shape[1]].equal(scales) else None
