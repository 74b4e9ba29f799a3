"""Linear layers with int8 weights in Triton: half the bytes to read; products in the type of the activations.

The weight is the left operand, whose elements may be converted in registers on their way to the matrix unit, and the rows of x
are the right one, of which 16 are enough.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.reference.gemm_int8 import Int8Weight, pack, rows
from minivllm.kernels.triton.launch import LinearKind, LinearShape, launch_linear

__all__ = ["Int8Weight", "linear", "pack", "rows"]

_KIND = LinearKind("int8", 32, 256, 64)


@triton.jit(do_not_specialize=["num_rows"])
def int8_kernel(
    out_ptr, x_ptr, weight_ptr, scale_ptr, bias_ptr, num_rows, x_stride, N: tl.constexpr, K: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of rows of x, which share what the cache holds of the weight, and blocks of the weight."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    weight_ptrs = weight_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
    x_ptrs = x_ptr + m.to(tl.int64)[None, :] * x_stride + k[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for begin in range(0, K, BLOCK_K):
        inside = k < K - begin
        weight = tl.load(weight_ptrs + begin, mask=(n < N)[:, None] & inside[None, :], other=0)
        x = tl.load(x_ptrs + begin, mask=(m < num_rows)[None, :] & inside[:, None], other=0.0)
        acc = tl.dot(weight.to(tl.float32).to(x.dtype), x, acc, input_precision=PRECISION)
    scale = tl.load(scale_ptr + n, mask=n < N, other=0.0)
    # Whatever is not finite has left each sum infinite or NaN; the contract says NaN.
    out = (acc + (acc - acc)) * scale[:, None]
    if BIASED:
        out += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=(n < N)[:, None] & (m < num_rows)[None, :])


def linear(x: Tensor, weight: Int8Weight, bias: Tensor | None = None) -> Tensor:
    """See reference.gemm_int8; here x is not rounded to integers, so sums are those of fp32."""
    n, k = weight.data.shape

    def launch(grid: tuple[int, int], out: Tensor, rows: Tensor, shape: LinearShape) -> None:
        int8_kernel[grid](
            out, rows, weight.data, weight.scales, out if bias is None else bias, rows.shape[0], rows.stride(0), n, k,
            shape.block_n, shape.block_m, shape.block_k, bias is not None, shape.precision, **shape.options,
        )  # fmt: skip

    return launch_linear(x, n, x.dtype == torch.float32, _KIND, launch)
