"""Random numbers that depend on seed and position alone, and drawing a column by them."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minivllm.worker.sampling.blocked import BLOCK


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64], attempt: int) -> npt.NDArray[np.float64]:
    """[rows] in [0, 1): a hash of (seed, position in the output, attempt), so neither slot nor neighbours matter."""
    mixed = _mix(seeds)
    mixed = _mix(mixed + positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    mixed = _mix(mixed + np.uint64(attempt * 0xD1342543DE82EF95 % 2**64))
    return (mixed >> np.uint64(12)).astype(np.float64) * 2.0**-52


def draw_columns(weights: Tensor, uniform: Tensor) -> Tensor:
    """int64 [rows]: a column of each row with probability in proportion to its weight.

    weights: fp32 [rows, num_blocks, BLOCK], not negative, a positive one in each row; uniform: fp64 [rows] in [0, 1).
    Inverts the cumulative sum, first over blocks, then inside one: a single pass over the weights.
    """
    mass = weights.sum(-1).double()
    cumulative = mass.cumsum(-1)
    target = uniform * cumulative[:, -1]
    block = torch.searchsorted(cumulative, target[:, None], right=True)  # the first block that ends beyond the target
    inside = weights.gather(1, block[:, :, None].expand(-1, -1, BLOCK)).squeeze(1).double().cumsum(-1)
    rest = target - (cumulative - mass).gather(1, block).squeeze(1)
    # The sum inside may be a rounding smaller than the block's mass; the target must stay below its end.
    rest = torch.minimum(rest, inside[:, -1] * (1 - 2.0**-50))
    return block.squeeze(1) * BLOCK + torch.searchsorted(inside, rest[:, None], right=True).squeeze(1)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64 (Steele, Lea and Flood 2014): one step of the generator, its finaliser included."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
