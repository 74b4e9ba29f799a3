"""Linear layers with weights in groups on the compiled kernels, in bf16; see csrc/cpu/gemm_grouped.cpp."""

from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.codes import CODES
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import aligned, input_rows

DTYPES = (torch.bfloat16,)  # of x


@dataclass(slots=True)
class PackedGroups:
    """A weight [out_features, in_features] in the layout of csrc/cpu/gemm_grouped.cpp; the only copy that is needed."""

    data: Tensor  # uint8
    bits: int
    group: int
    out_features: int
    in_features: int
    table: Tensor | None  # fp32
    order: Tensor | None  # int64

    @property
    def shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def pack(
    values: Tensor, scales: Tensor, least: Tensor, bits: int, codes: str | None = None, order: Tensor | None = None
) -> PackedGroups:
    """See reference.gemm_grouped."""
    out_features, groups = scales.shape
    width = values.shape[1]
    in_features = width * 8 // bits
    group = in_features // groups
    fits = values.shape[0] == out_features and least.shape == scales.shape and in_features == groups * group
    table = None if codes is None else CODES[codes]
    fits &= table is None or (group == 32 and len(table) == 1 << bits and (bits == 4 or codes == "e4m3"))
    fits &= order is None or bool((order.sort().values == torch.arange(in_features)).all())
    if bits not in (4, 8) or group not in (16, 32) or in_features % _cpu.DEPTH or not fits:
        raise ValueError(f"{bits} bits: {list(values.shape)}, {list(scales.shape)} and {list(least.shape)} do not fit together")
    if values.dtype != torch.uint8 or scales.dtype != torch.float16 or least.dtype != torch.float16:
        raise TypeError(f"expected uint8, float16 and float16, got {values.dtype}, {scales.dtype} and {least.dtype}")
    columns = -(-out_features // _cpu.PANEL) * _cpu.PANEL
    data = aligned(columns * (width + 4 * groups), torch.uint8)
    values, scales, least = values.contiguous(), scales.contiguous(), least.contiguous()
    _cpu.gemm_grouped_pack(
        bits, group, values.data_ptr(), scales.data_ptr(), least.data_ptr(), data.data_ptr(), out_features, in_features
    )
    return PackedGroups(data, bits, group, out_features, in_features, table, order)


def linear(x: Tensor, weight: PackedGroups, bias: Tensor | None = None) -> Tensor:
    """See reference.gemm_grouped; x must be bf16."""
    if x.dtype != torch.bfloat16 or (bias is not None and (bias.dtype != torch.bfloat16 or not bias.is_contiguous())):
        raise TypeError(f"a packed weight takes bfloat16 x and contiguous bias, got {x.dtype} and {bias and bias.dtype}")
    rows = input_rows(x, weight.shape)
    out = torch.empty((*x.shape[:-1], weight.out_features), dtype=x.dtype)
    call(
        _cpu.gemm_grouped, rows.shape[0], weight.bits, weight.group, rows, weight.data, bias, out,
        weight.out_features, weight.in_features, rows.stride(0), weight.table, weight.order,
    )  # fmt: skip
    return out


def rows(weight: PackedGroups, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """See reference.gemm_grouped; dtype must be bf16."""
    if indices.dtype != torch.int64 or dtype != torch.bfloat16:
        raise TypeError(f"expected int64 indices and bfloat16, got {indices.dtype} and {dtype}")
    indices = indices.contiguous()
    out = torch.empty((*indices.shape, weight.in_features), dtype=dtype)
    call(
        _cpu.gemm_grouped_rows, indices.numel(), weight.bits, weight.group, weight.data, weight.table, indices, out,
        weight.out_features, weight.in_features,
    )  # fmt: skip
    return out if weight.order is None else out[..., weight.order.argsort()]
