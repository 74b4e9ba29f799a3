"""Sums and multiples of activations, in place; rows of a table of which there is only a part."""

import torch
from torch import Tensor


def scale(x: Tensor, factor: float) -> Tensor:
    """x *= factor; x comes back."""
    x *= factor
    return x


def add(x: Tensor, y: Tensor) -> Tensor:
    """x += y, of the same shape; x comes back."""
    x += y
    return x


def indices_in(indices: Tensor, begin: int, end: int) -> Tensor:
    """int64 indices counted from `begin`; 0 for those outside begin to end."""
    return torch.where((indices >= begin) & (indices < end), indices - begin, 0)


def clear_outside(x: Tensor, indices: Tensor, begin: int, end: int) -> Tensor:
    """Zeros in the rows of x [num_rows, columns] whose index is outside begin to end; x comes back."""
    return x.masked_fill_(((indices < begin) | (indices >= end))[:, None], 0)
