"""Normalisation, alone or after adding to the residual stream."""

from abc import abstractmethod

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import Share, whole
from minivllm.kernels import Ops
from minivllm.model.layers.layer import Layer


class Norm(Layer):
    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual += x in place; the normalised residual comes back."""


class RMSNorm(Norm):
    """Zhang and Sennrich 2019."""

    def __init__(self, ops: Ops, size: int, eps: float, *, dtype: torch.dtype, plus_one: bool = False):
        self._ops = ops.norm
        self._eps = eps
        self._plus_one = plus_one
        self.weight = self.declare(size, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self.weight, self._eps, plus_one=self._plus_one)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._ops.add_rms_norm(x, residual, self.weight, self._eps, plus_one=self._plus_one)


class LayerNorm(Norm):
    """Ba et al. 2016, with any of weight and bias. With `heads` each of them has a weight of its own."""

    def __init__(
        self, ops: Ops, size: int, eps: float, *, dtype: torch.dtype, weight: bool = True, bias: bool = True,
        plus_one: bool = False, heads: Share | None = None,
    ):  # fmt: skip
        self._ops = ops.norm
        self._eps = eps
        self._plus_one = plus_one
        self._heads = heads
        rows = (size,) if heads is None else heads.each(whole(size))
        self.weight: Tensor | None = self.declare(rows, dtype=dtype) if weight else None
        self.bias: Tensor | None = self.declare(size, dtype=dtype) if bias else None

    def finish_loading(self) -> None:
        if self._heads is not None and self.weight is not None:
            self.weight = self.weight.view(self._heads.size, -1)

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.layer_norm(x, self.weight, self.bias, self._eps, plus_one=self._plus_one)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._ops.add_layer_norm(x, residual, self.weight, self.bias, self._eps, plus_one=self._plus_one)


class NoNorm(Norm):
    """Where other models normalise and this one does not."""

    def __init__(self, ops: Ops):
        self._add = ops.elementwise.add

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._add(residual, x)


def make_norm(spec: ModelSpec, ops: Ops, size: int, dtype: torch.dtype) -> Norm:
    """The kind that the model uses throughout."""
    if spec.norm == "rms":
        return RMSNorm(ops, size, spec.norm_eps, dtype=dtype, plus_one=spec.norm_plus_one)
    return LayerNorm(
        ops, size, spec.norm_eps, dtype=dtype, weight=spec.norm_weight, bias=spec.norm_bias, plus_one=spec.norm_plus_one
    )


def make_head_norm(spec: ModelSpec, ops: Ops, heads: Share, dtype: torch.dtype) -> Norm:
    """Of queries or keys. One over all heads together has the weights of all, whatever the share."""
    if spec.qk_norm == "all":
        return make_norm(spec, ops, heads.whole * spec.head_dim, dtype)
    if spec.qk_norm == "heads":
        return LayerNorm(ops, spec.head_dim, spec.norm_eps, dtype=dtype, bias=False, heads=heads)
    return make_norm(spec, ops, spec.head_dim, dtype)
