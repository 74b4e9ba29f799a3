"""Linear layers with weights in floats of 8 bits (e4m3) in Triton, which the matrix unit takes as they are from sm_89 on."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.reference.gemm_fp8 import BLOCK, TOP, Fp8Weight, pack, rows
from minivllm.kernels.triton.launch import LinearKind, LinearShape, launch_linear, power_of_2

__all__ = ["Fp8Weight", "is_native", "linear", "pack", "rows"]

_BY_ROW = LinearKind("fp8", BLOCK, 2 * BLOCK, BLOCK)
_BY_BLOCK = LinearKind("fp8 blocks", BLOCK, BLOCK, BLOCK, 64)  # scales in the loop take registers


@triton.jit
def round_kernel(
    out_ptr, scale_ptr, x_ptr, x_stride, K: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, TOP: tl.constexpr
):
    """Grid: rows, groups of WIDTH columns, whose greatest number becomes TOP. `scale` makes x of out again."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH_PAD)
    columns = tl.program_id(1) * WIDTH + at
    mask = (at < WIDTH) & (columns < K)
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(x), 0), 1e-30)
    tl.store(out_ptr + row * K + columns, (x * tl.div_rn(TOP, largest)).to(out_ptr.dtype.element_ty), mask=mask)
    flaw = tl.sum(x - x, 0)  # NaN if anything is not finite
    tl.store(scale_ptr + row * tl.num_programs(1) + tl.program_id(1), tl.div_rn(largest, TOP) + flaw)


@triton.jit(do_not_specialize=["num_rows"])
def fp8_kernel(
    out_ptr, x_ptr, x_scale_ptr, weight_ptr, scale_ptr, bias_ptr, num_rows, N: tl.constexpr, K: tl.constexpr,
    GROUPS: tl.constexpr, SCALE_ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """Grid as in gemm_int8. GROUPS: scales along a row; if there is more than one, each is of BLOCK_K columns. The sum over
    BLOCK_K columns is added up apart: matrix units keep few bits of sums of such floats."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    weight_ptrs = weight_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
    x_ptrs = x_ptr + m.to(tl.int64)[None, :] * K + k[:, None]
    scale_ptrs = scale_ptr + n // SCALE_ROWS * GROUPS
    x_scale_ptrs = x_scale_ptr + m * GROUPS
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for begin in range(0, K, BLOCK_K):
        inside = k < K - begin
        weight = tl.load(weight_ptrs + begin, mask=(n < N)[:, None] & inside[None, :], other=0.0)
        x = tl.load(x_ptrs + begin, mask=(m < num_rows)[None, :] & inside[:, None], other=0.0)
        part = tl.dot(weight, x)
        if GROUPS > 1:
            scale = tl.load(scale_ptrs + begin // BLOCK_K, mask=n < N, other=0.0)
            part *= scale[:, None] * tl.load(x_scale_ptrs + begin // BLOCK_K, mask=m < num_rows, other=0.0)[None, :]
        acc += part
    if GROUPS == 1:
        scale = tl.load(scale_ptrs, mask=n < N, other=0.0)
        acc *= scale[:, None] * tl.load(x_scale_ptrs, mask=m < num_rows, other=0.0)[None, :]
    if BIASED:
        acc += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(n < N)[:, None] & (m < num_rows)[None, :])


def is_native(device: torch.device) -> bool:
    """See reference.gemm_fp8."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def linear(x: Tensor, weight: Fp8Weight, bias: Tensor | None = None) -> Tensor:
    """See reference.gemm_fp8."""
    (n, k), groups = weight.data.shape, weight.scales.shape[1]

    def launch(grid: tuple[int, int], out: Tensor, rows: Tensor, shape: LinearShape) -> None:
        small, scales = _rounded(rows, weight.columns_of_scale, groups)
        fp8_kernel[grid](
            out, small, scales, weight.data, weight.scales, out if bias is None else bias, len(rows), n, k, groups,
            weight.rows_of_scale, shape.block_n, shape.block_m, shape.block_k, bias is not None, **shape.options,
        )  # fmt: skip

    return launch_linear(x, n, False, _BY_ROW if groups == 1 else _BY_BLOCK, launch)


def _rounded(x: Tensor, width: int, groups: int) -> tuple[Tensor, Tensor]:
    """x [rows, columns] in 8 bits, and fp32 [rows, groups] scales."""
    small = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((len(x), groups), dtype=torch.float32, device=x.device)
    width_pad = power_of_2(width)
    round_kernel[(len(x), groups)](
        small, scales, x, x.stride(0), x.shape[1], width, width_pad, TOP, num_warps=min(16, max(1, width_pad // 512))
    )
    return small, scales
