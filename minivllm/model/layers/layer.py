"""`Layer`: a node of the model tree. Plain attributes and calls: at batch 1 `torch.nn.Module` would cost more than its use."""

from collections.abc import Iterator

import torch

from minivllm.model.layers.shard import Dim, Parameter, ShardSpec


class Layer:
    """Its children are the attributes that are layers or lists of layers; its parameters those that are `Parameter`s.

    Three steps make one: `__init__` declares parameters, the loader replaces each by a tensor, `finish_loading` brings
    them into the form in which they are used.
    """

    share_read = 1.0  # of its weights, by a step with one token

    def finish_loading(self) -> None:
        """Called once, when all parameters of this layer are tensors."""

    def declare(self, *dims: Dim, dtype: torch.dtype, kept_bits: float | None = None) -> torch.Tensor:
        """A parameter to be loaded; typed as the tensor that it will be. `dims`: see `Dim`; `kept_bits`: see `Parameter`."""
        return Parameter(dtype, kept_bits or 8 * dtype.itemsize, ShardSpec.of(dims))  # type: ignore[return-value]

    def parameters(self) -> dict[str, Parameter]:
        """What is still to be loaded into this layer itself, by attribute."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Parameter)}

    def walk(self, path: str = "") -> Iterator[tuple[str, "Layer"]]:
        """This layer and all below it with their paths, such as model.layers.0.mlp."""
        yield path, self
        prefix = f"{path}." if path else ""
        for name, value in vars(self).items():
            if isinstance(value, Layer):
                yield from value.walk(prefix + name)
            elif isinstance(value, list) and value and isinstance(value[0], Layer):
                for index, layer in enumerate(value):
                    yield from layer.walk(f"{prefix}{name}.{index}")
