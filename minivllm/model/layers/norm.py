"""RMS normalisation (Zhang and Sennrich 2019), alone or after adding to the residual stream."""

import torch
from torch import Tensor

from minivllm.kernels import Ops
from minivllm.model.layers.layer import Layer


class RMSNorm(Layer):
    def __init__(self, ops: Ops, hidden_size: int, eps: float, *, dtype: torch.dtype):
        self._ops = ops.norm
        self._eps = eps
        self.weight = self.declare(hidden_size, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self.weight, self._eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual += x in place; the normalised residual comes back."""
        return self._ops.add_rms_norm(x, residual, self.weight, self._eps)
