"""Sums and multiples of activations: torch's own kernels, which a graph records like any other."""

from torch import Tensor

from minivllm.kernels.reference.elementwise import clear_outside, indices_in

__all__ = ["add", "clear_outside", "indices_in", "scale"]


def scale(x: Tensor, factor: float) -> Tensor:
    """See reference.elementwise."""
    return x.mul_(factor)


def add(x: Tensor, y: Tensor) -> Tensor:
    """See reference.elementwise."""
    if x.shape != y.shape:
        raise ValueError(f"x {list(x.shape)} and y {list(y.shape)} must have the same shape")
    return x.add_(y)
