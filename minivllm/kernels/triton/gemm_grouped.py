"""Linear layers with weights of 4 or 8 bits in groups of 16 or 32 in Triton; unpacked on the way to the matrix unit."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.reference.gemm_grouped import DTYPES, GroupedWeight, pack, rows
from minivllm.kernels.triton.launch import LinearKind, LinearShape, launch_linear

__all__ = ["DTYPES", "GroupedWeight", "linear", "pack", "rows"]

# By bits, and whether numbers come from a table: its addresses take registers of their own.
_KINDS = {
    (4, False): LinearKind("4 bits", 64, 256, 64),
    (8, False): LinearKind("8 bits", 64, 256, 64),
    (4, True): LinearKind("4 bits, codes", 64, 256, 64),
    (8, True): LinearKind("8 bits, codes", 64, 128, 64),
}


@triton.jit
def number_of(value, table_ptr, CODED: tl.constexpr):
    return tl.load(table_ptr + value.to(tl.int32)) if CODED else value.to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def grouped_kernel(
    out_ptr, x_ptr, value_ptr, scale_ptr, least_ptr, bias_ptr, table_ptr, num_rows, x_stride, N: tl.constexpr, K: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr,
    CODED: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid as in gemm_int8. GROUPS are read at a time; with 4 bits a byte has a value of the first half of its group and one of
    the second, hence two products."""
    BYTES: tl.constexpr = GROUP * BITS // 8  # of a group
    WIDTH: tl.constexpr = GROUPS * BYTES
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.arange(0, WIDTH)
    column = at // BYTES * GROUP + at % BYTES  # of x; with 4 bits, of the low halves
    group = tl.arange(0, GROUPS)
    rows = n.to(tl.int64)[:, None]
    value_ptrs = value_ptr + rows * (K // GROUP * BYTES) + at[None, :]
    x_ptrs = x_ptr + m.to(tl.int64)[None, :] * x_stride + column[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for begin in range(0, K // GROUP, GROUPS):
        inside = (at // BYTES < K // GROUP - begin)[None, :] & (n < N)[:, None]
        x_mask = (at // BYTES < K // GROUP - begin)[:, None] & (m < num_rows)[None, :]
        some = (group < K // GROUP - begin)[None, :] & (n < N)[:, None]
        value = tl.load(value_ptrs + begin * BYTES, mask=inside, other=0)
        scale = tl.load(scale_ptr + rows * (K // GROUP) + begin + group[None, :], mask=some, other=0.0).to(tl.float32)
        least = tl.load(least_ptr + rows * (K // GROUP) + begin + group[None, :], mask=some, other=0.0).to(tl.float32)
        scale = tl.reshape(tl.broadcast_to(scale[:, :, None], (BLOCK_N, GROUPS, BYTES)), (BLOCK_N, WIDTH))
        least = tl.reshape(tl.broadcast_to(least[:, :, None], (BLOCK_N, GROUPS, BYTES)), (BLOCK_N, WIDTH))
        x = tl.load(x_ptrs + begin * GROUP, mask=x_mask, other=0.0)
        if BITS == 4:
            low = number_of(value & 15, table_ptr, CODED) * scale + least
            acc = tl.dot(low.to(x.dtype), x, acc, input_precision=PRECISION)
            x = tl.load(x_ptrs + begin * GROUP + GROUP // 2, mask=x_mask, other=0.0)
            value = value >> 4
        acc = tl.dot((number_of(value, table_ptr, CODED) * scale + least).to(x.dtype), x, acc, input_precision=PRECISION)
    if BIASED:
        acc += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(n < N)[:, None] & (m < num_rows)[None, :])


def linear(x: Tensor, weight: GroupedWeight, bias: Tensor | None = None) -> Tensor:
    """See reference.gemm_grouped."""
    n, k = weight.values.shape[0], weight.values.shape[1] * 8 // weight.bits
    group = k // weight.scales.shape[1]
    x = x if weight.order is None else x.index_select(-1, weight.order)

    def launch(grid: tuple[int, int], out: Tensor, rows: Tensor, shape: LinearShape) -> None:
        grouped_kernel[grid](
            out, rows, weight.values, weight.scales, weight.least, out if bias is None else bias,
            out if weight.table is None else weight.table, rows.shape[0], rows.stride(0), n, k, shape.block_n, shape.block_m,
            group, shape.block_k // group, weight.bits, weight.table is not None, bias is not None, shape.precision,
            **shape.options,
        )  # fmt: skip

    return launch_linear(x, n, x.dtype == torch.float32, _KINDS[weight.bits, weight.table is not None], launch)
