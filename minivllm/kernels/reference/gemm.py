"""Linear layers by torch; the weight stays the tensor that it is."""

import torch.nn.functional as F
from torch import Tensor


def pack(weight: Tensor) -> Tensor:
    """What `linear` and `rows` take for a weight [out_features, in_features]."""
    return weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias over the last dimension of x."""
    return F.linear(x, weight, bias)


def rows(weight: Tensor, indices: Tensor) -> Tensor:
    """Rows of the weight, as an embedding look-up; lets a tied output head and embedding share one packed copy."""
    return F.embedding(indices, weight)
