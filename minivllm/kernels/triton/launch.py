"""What launches of several kernels need to know: the device, powers of two, how products with packed weights are divided."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.triton.tiles import MEASURED

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
    block_k: int  # columns of both at a time
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


@dataclass(frozen=True, slots=True)
class LinearKind:
    """Products with one kind of packed weight, and how many columns are multiplied at a time:"""

    name: str
    wide_k: int  # in fp32,
    few_k: int  # with up to 32 rows of x,
    much_k: int  # and with more
    most_rows: int = 128  # of x

    def shape(self, num_rows: int, n: int, wide: bool, device: torch.device) -> LinearShape:
        """For a weight of n rows. `wide`: in fp32, where tiles are twice as large."""
        block_m = min(32 if wide else self.most_rows, max(16, power_of_2(num_rows)))
        many = n >= 64 * num_processors(device)
        measured = None if wide else MEASURED.get((self.name, block_m, many))
        if measured is not None:
            block_n, block_k, warps, stages = measured
            return LinearShape(block_m, block_n, block_k, warps, stages, wide)
        if block_m >= 64:
            return LinearShape(block_m, 128, self.much_k, 8, 3, wide)
        # What counts is to have the weight read by as many processors as there are.
        block_n = 64 if many else 32
        return LinearShape(block_m, block_n, self.wide_k if wide else self.few_k, 4, 2 if wide else 4, wide)


def launch_linear(
    x: Tensor, n: int, wide: bool, kind: LinearKind, launch: Callable[[tuple[int, int], Tensor, Tensor, LinearShape], None]
) -> Tensor:
    """[..., n] for x [..., k]. `launch` gets the grid, blocks of rows of x and blocks of the weight's rows; out and x as
    matrices whose rows are dense; and the tiles. It is not called if there is nothing to do."""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty((rows.shape[0], n), dtype=x.dtype, device=x.device)
    if rows.shape[0]:
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        shape = kind.shape(rows.shape[0], n, wide, x.device)
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
