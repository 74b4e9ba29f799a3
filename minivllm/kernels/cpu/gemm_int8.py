"""Linear layers with int8 weights on the compiled kernels; see csrc/cpu/gemm_int8.cpp."""

from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES, aligned


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
    columns = _round_up(out_features, _cpu.PANEL)
    data = aligned(columns * _round_up(in_features, _cpu.DEPTH_INT8), torch.uint8)
    scales = torch.empty(columns, dtype=torch.float32)
    _cpu.gemm_int8_pack(DTYPES[weight.dtype], weight.data_ptr(), data.data_ptr(), scales.data_ptr(), out_features, in_features)
    return PackedInt8(data, scales, out_features, in_features)


def linear(x: Tensor, weight: PackedInt8, bias: Tensor | None = None) -> Tensor:
    """See reference.gemm_int8."""
    if x.shape[-1] != weight.in_features:
        raise ValueError(f"x {list(x.shape)} does not fit a weight {list(weight.shape)}")
    if bias is not None and (bias.dtype != x.dtype or not bias.is_contiguous()):
        raise TypeError(f"bias must be contiguous and {x.dtype} like x, got {bias.dtype}")
    rows = x.reshape(-1, weight.in_features)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    out = torch.empty((*x.shape[:-1], weight.out_features), dtype=x.dtype)
    call(
        _cpu.gemm_int8, rows.shape[0], DTYPES[x.dtype], rows, weight.data, weight.scales, bias, out,
        weight.out_features, weight.in_features, rows.stride(0),
    )  # fmt: skip
    return out


def rows(weight: PackedInt8, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """See reference.gemm_int8."""
    if indices.dtype != torch.int64:
        raise TypeError(f"indices must be int64, got {indices.dtype}")
    indices = indices.contiguous()
    out = torch.empty((*indices.shape, weight.in_features), dtype=dtype)
    call(
        _cpu.gemm_int8_rows, indices.numel(), DTYPES[dtype], weight.data, weight.scales, indices, out,
        weight.out_features, weight.in_features,
    )  # fmt: skip
    return out


def _round_up(n: int, step: int) -> int:
    return (n + step - 1) // step * step
