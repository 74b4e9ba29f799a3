"""Linear layers with weights in 8-bit floats on the compiled kernels: unpacked once, since CPUs do not multiply such floats."""

import torch
from torch import Tensor

from minivllm.kernels.cpu import gemm
from minivllm.kernels.reference import gemm_fp8 as reference

Weight = gemm.PackedLinear | Tensor


def is_native(device: torch.device) -> bool:
    """See reference.gemm_fp8."""
    return False


def pack(weight: Tensor, scales: Tensor, dtype: torch.dtype) -> Weight:
    """See reference.gemm_fp8; the weight as it is in `dtype`."""
    return gemm.pack(reference.pack(weight, scales, dtype).unpack().to(dtype))


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """See reference.gemm_fp8; x is not rounded."""
    return gemm.linear(x, weight, bias)


def rows(weight: Weight, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """See reference.gemm_fp8."""
    return gemm.rows(weight, indices).to(dtype)
