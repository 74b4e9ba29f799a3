"""What launches of several kernels need to know: the device, powers of two, how products with packed weights are divided."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

MANY_PROCESSORS = 132  # of an H100 or H200; assumed where there is no GPU to ask


@cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors: so many programs at least keep the whole device busy."""
    if device.type != "cuda":
        return MANY_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def power_of_2(n: int) -> int:
    """The least one that is not below n."""
    return 1 << max(0, n - 1).bit_length()


def head_strides(x: Tensor) -> tuple[int, int, int]:
    """How to walk over the rows of x along its last dimension: (heads, stride of outer rows, stride of heads).

    Row r starts at r // heads * outer + r % heads * inner. Works for tensors of up to three dimensions with dense rows.
    """
    if x.dim() == 3:
        return x.shape[1], x.stride(0), x.stride(1)
    return 1, x.stride(0) if x.dim() == 2 else 0, 0


@dataclass(frozen=True, slots=True)
class LinearShape:
    block_m: int  # rows of x
    block_n: int  # rows of the weight
    warps: int
    stages: int
    wide: bool  # products in fp32

    @property
    def precision(self) -> str:
        """Of a product in fp32."""
        return "tf32x3" if self.wide else "tf32"

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


def linear_shape(num_rows: int, n: int, wide: bool, device: torch.device, most_rows: int = 128) -> LinearShape:
    """Tiles for a product with a packed weight of n rows. In fp32 they are twice as large."""
    block_m = min(32 if wide else most_rows, max(16, power_of_2(num_rows)))
    if block_m >= 64:
        return LinearShape(block_m, 128, 8, 3, wide)
    # What counts is to have the weight read by as many processors as there are.
    block_n = 64 if n >= 64 * num_processors(device) else 32
    return LinearShape(block_m, block_n, 4, 2 if wide else 4, wide)


def launch_linear(
    x: Tensor, n: int, wide: bool, launch: Callable[[tuple[int, int], Tensor, Tensor, LinearShape], None], most_rows: int = 128
) -> Tensor:
    """[..., n] for x [..., k]. `launch` gets the grid, blocks of rows of x and blocks of the weight's rows; out and x as
    matrices whose rows are dense; and the tiles. It is not called if there is nothing to do."""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty((rows.shape[0], n), dtype=x.dtype, device=x.device)
    if rows.shape[0]:
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        shape = linear_shape(rows.shape[0], n, wide, x.device, most_rows)
        launch((triton.cdiv(rows.shape[0], shape.block_m), triton.cdiv(n, shape.block_n)), out, rows, shape)
    return out.view(*x.shape[:-1], n)


@triton.jit
def find_owner(start_ptr, count, block, BLOCK: tl.constexpr):
    """Which of `count` sequences of rows, starting at start[0], start[1] …, owns a block of BLOCK rows, if sequence s begins
    with block start[s] // BLOCK + s: that leaves room for its last, partial one, and needs no table from the host."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if tl.load(start_ptr + middle) // BLOCK + middle <= block:
            low = middle + 1
        else:
            high = middle
    return low - 1
