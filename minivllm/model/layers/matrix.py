"""`Matrix`: a layer around one weight [out_features, in_features], in the form that a quantization scheme gives it."""

from typing import Any

import torch

from minivllm.config.shares import Share
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.shard import as_share
from minivllm.model.quantization.scheme import Scheme


class Matrix(Layer):
    """The weight is the stack, for each of `rows`, of these rows of a checkpoint tensor and of them these `columns`.
    `is_multiplied`: not only looked up.
    """

    weight: Any  # what the scheme makes of it
    values: Any  # what a scheme of groups reads to make it,
    scales: Any
    least: Any

    def __init__(self, scheme: Scheme, rows: tuple[int | Share, ...], columns: int | Share, dtype: torch.dtype):
        self.rows = tuple(as_share(part) for part in rows)
        self.columns = as_share(columns)
        self.shape = (sum(part.size for part in self.rows), self.columns.size)
        self.dtype = dtype  # of activations, and of the weight unless it is quantized
        self.is_multiplied = True
        self.use(scheme)

    def use(self, scheme: Scheme) -> None:
        """Before loading: keep the weight in this form."""
        self.scheme = scheme
        scheme.create_weights(self)

    def finish_loading(self) -> None:
        self.scheme.finish_loading(self)
