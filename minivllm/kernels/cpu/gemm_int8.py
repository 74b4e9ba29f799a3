"""Linear layers with int8 weights on the compiled kernels; see csrc/cpu/gemm_int8.cpp."""

from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES, aligned, input_rows, round_up, row_indices


@dataclass(slots=True)
class PackedInt8:
    """A weight [out_features, in_features] in the layout of csrc/cpu/gemm_int8.cpp; the only copy that is needed."""

    data: Tensor  # uint8
    scales: Tensor  # fp32
    out_features: int
    in_features: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.scales.nbytes


def pack(weight: Tensor) -> PackedInt8:
    """See reference.gemm_int8."""
    weight = weight.contiguous()
    out_features, in_features = weight.shape
    columns = round_up(out_features, _cpu.PANEL)
    data = aligned(columns * round_up(in_features, _cpu.DEPTH_INT8), torch.uint8)
    scales = torch.empty(columns, dtype=torch.float32)
    _cpu.gemm_int8_pack(DTYPES[weight.dtype], weight.data_ptr(), data.data_ptr(), scales.data_ptr(), out_features, in_features)
    return PackedInt8(data, scales, out_features, in_features)


def linear(x: Tensor, weight: PackedInt8, bias: Tensor | None = None) -> Tensor:
    """See reference.gemm_int8."""
    if bias is not None and (bias.dtype != x.dtype or not bias.is_contiguous()):
        raise TypeError(f"bias must be contiguous and {x.dtype} like x, got {bias.dtype}")
    rows = input_rows(x, weight.shape)
    out = torch.empty((*x.shape[:-1], weight.out_features), dtype=x.dtype)
    call(
        _cpu.gemm_int8, rows.shape[0], DTYPES[x.dtype], rows, weight.data, weight.scales, bias, out,
        weight.out_features, weight.in_features, rows.stride(0),
    )  # fmt: skip
    return out


def rows(weight: PackedInt8, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """See reference.gemm_int8."""
    indices = row_indices(indices)
    out = torch.empty((*indices.shape, weight.in_features), dtype=dtype)
    call(
        _cpu.gemm_int8_rows, indices.numel(), DTYPES[dtype], weight.data, weight.scales, indices, out,
        weight.out_features, weight.in_features,
    )  # fmt: skip
    return out
