"""`Dense`: a layer that sentence-transformers puts behind the pooling, from its own folder."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from minivllm.config.model_files import read_json
from minivllm.errors import ConfigError
from minivllm.model.loading.safetensors import SafetensorsFolder

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
    "Sigmoid": torch.sigmoid,
}


class Dense:
    """fp32: it works on one row a text."""

    def __init__(self, folder: str, device: str):
        name = str(read_json(Path(folder) / "config.json").get("activation_function", "torch.nn.modules.linear.Identity"))
        activation = _ACTIVATIONS.get(name.rpartition(".")[2])
        if activation is None:
            raise ConfigError(f"{folder}: the activation function {name} is not supported.", param="model")
        source = SafetensorsFolder(Path(folder))
        found = source.shapes()
        if "linear.weight" not in found:
            raise ConfigError(f"{folder} lacks linear.weight.", param="model")
        self._weight = source.read("linear.weight").to(device, torch.float32, copy=True)
        self._bias = source.read("linear.bias").to(device, torch.float32, copy=True) if "linear.bias" in found else None
        self._activation = activation
        source.close()

    def __call__(self, x: Tensor) -> Tensor:
        return self._activation(F.linear(x, self._weight, self._bias))
