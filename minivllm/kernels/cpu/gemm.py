"""Linear layers: bf16 weights packed once for the compiled kernel, other types by torch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import aligned, input_rows, round_up, row_indices
from minivllm.kernels.reference import gemm as reference


@dataclass(slots=True)
class PackedLinear:
    """A bf16 weight [out_features, in_features] in the layout of csrc/cpu/gemm.cpp; the only copy that is needed."""

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
    if weight.dtype != torch.bfloat16 or weight.numel() == 0:
        return weight
    weight = weight.contiguous()
    out_features, in_features = weight.shape
    data = aligned(round_up(out_features, _cpu.PANEL) * round_up(in_features, _cpu.DEPTH), torch.bfloat16)
    _cpu.gemm_pack(weight.data_ptr(), data.data_ptr(), out_features, in_features)
    return PackedLinear(data, out_features, in_features)


def linear(x: Tensor, weight: PackedLinear | Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias over the last dimension of x; x must be bf16 if the weight is packed."""
    if isinstance(weight, Tensor):
        return reference.linear(x, weight, bias)
    if x.dtype != torch.bfloat16 or (bias is not None and (bias.dtype != torch.bfloat16 or not bias.is_contiguous())):
        raise TypeError(f"a packed weight takes bfloat16 x and contiguous bias, got {x.dtype} and {bias and bias.dtype}")
    rows = input_rows(x, weight.shape)
    out = torch.empty((*x.shape[:-1], weight.out_features), dtype=x.dtype)
    call(_cpu.gemm, rows.shape[0], rows, weight.data, bias, out, weight.out_features, weight.in_features, rows.stride(0))
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
    call(_cpu.gemm_rows, indices.numel(), weight.data, indices, out, weight.out_features, weight.in_features)
    return out
