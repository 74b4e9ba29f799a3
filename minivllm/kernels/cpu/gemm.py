"""Linear layers with weights packed once for the compiled kernels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES, aligned, input_rows, round_up, row_indices
from minivllm.kernels.reference import gemm as reference


@dataclass(slots=True)
class PackedLinear:
    """A weight [out_features, in_features] in the layout of csrc/cpu/gemm.cpp; the only copy that is needed."""

    data: Tensor
    out_features: int
    in_features: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def pack(weight: Tensor) -> PackedLinear | Tensor:
    """What `linear` and `rows` take for a weight [out_features, in_features]; a packed weight does not refer to it."""
    if weight.dtype not in DTYPES or weight.numel() == 0:
        return weight
    weight = weight.contiguous()
    out_features, in_features = weight.shape
    data = aligned(round_up(out_features, _cpu.PANEL) * round_up(in_features, _cpu.DEPTH), weight.dtype)
    _cpu.gemm_pack(DTYPES[weight.dtype], weight.data_ptr(), data.data_ptr(), out_features, in_features)
    return PackedLinear(data, out_features, in_features)


def linear(x: Tensor, weight: PackedLinear | Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias over the last dimension of x; x, weight and bias are of one type."""
    if isinstance(weight, Tensor):
        return reference.linear(x, weight, bias)
    if x.dtype != weight.dtype or (bias is not None and (bias.dtype != weight.dtype or not bias.is_contiguous())):
        raise TypeError(f"{weight.dtype} weight takes x and contiguous bias of its type, got {x.dtype}, {bias and bias.dtype}")
    rows = input_rows(x, weight.shape)
    out = torch.empty((*x.shape[:-1], weight.out_features), dtype=x.dtype)
    call(
        _cpu.gemm, rows.shape[0], DTYPES[x.dtype], rows, weight.data, bias, out,
        weight.out_features, weight.in_features, rows.stride(0),
    )  # fmt: skip
    return out


def rows(weight: PackedLinear | Tensor, indices: Tensor) -> Tensor:
    """Rows of the weight at int64 indices, as an embedding look-up."""
    if isinstance(weight, Tensor) and not weight.is_contiguous():
        return reference.rows(weight, indices)
    indices = row_indices(indices)
    out = torch.empty((*indices.shape, weight.shape[1]), dtype=weight.dtype)
    if isinstance(weight, Tensor):
        call(_cpu.copy_rows, indices.numel(), weight, indices, out, weight.shape[0], weight.shape[1] * weight.itemsize)
        return out
    dtype = DTYPES[weight.dtype]
    call(_cpu.gemm_rows, indices.numel(), dtype, weight.data, indices, out, weight.out_features, weight.in_features)
    return out
