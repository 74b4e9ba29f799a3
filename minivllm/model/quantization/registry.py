"""Which scheme is behind which name of --quantization; a new one is one line here and one name in its choices."""

from minivllm.kernels import Ops
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.int8 import Int8
from minivllm.model.quantization.scheme import Scheme

SCHEMES: dict[str, type[Scheme]] = {
    "int8": Int8,
}


def quantize(model: Layer, name: str, ops: Ops) -> None:
    """Let every matrix of a model without weights that is multiplied use the scheme of that name."""
    scheme = SCHEMES[name](ops)
    for _, layer in model.walk():
        if isinstance(layer, Matrix) and layer.is_multiplied:
            layer.use(scheme)
