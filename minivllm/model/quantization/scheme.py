"""`Scheme`: how a `Matrix` layer keeps its weight. The layer says when, the scheme how."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor

from minivllm.kernels import Ops

if TYPE_CHECKING:
    from minivllm.model.layers.matrix import Matrix


class Scheme(ABC):
    """One object serves all layers; what belongs to a layer is kept in its attributes."""

    def __init__(self, ops: Ops):
        self._ops = ops

    @abstractmethod
    def create_weights(self, layer: "Matrix") -> None:
        """Declare what is to be read from the checkpoint, as attributes of the layer."""

    @abstractmethod
    def finish_loading(self, layer: "Matrix") -> None:
        """Bring the loaded tensors into the form in which they are used, and let go of them."""

    @abstractmethod
    def apply(self, layer: "Matrix", x: Tensor, bias: Tensor | None) -> Tensor:
        """x @ weight.T + bias over the last dimension of x, in its type."""

    @abstractmethod
    def rows(self, layer: "Matrix", indices: Tensor) -> Tensor:
        """Rows of the weight at int64 indices, as an embedding look-up, in the type of the activations."""
