"""Puts our layers into a model of transformers: every matrix is one of ours, and the loader fills what is left."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from minivllm.kernels import Ops
from minivllm.model.layers.embedding import Embedding
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.linear import Linear
from minivllm.model.layers.matrix import Matrix
from minivllm.model.transformers.shares import Shares

_ROUTERS = ("gate", "router")  # small, and their choices are sensitive: never quantized
_SCALED = "ScaledWordEmbedding"  # transformers' name for an embedding with a factor, in many models


class Stand(nn.Module):
    """In the place of a module with a matrix. Models that read its weight get a copy of it as it was."""

    def __init__(self, matrix: Matrix, device: str):
        super().__init__()
        self._matrix = matrix
        self._device = device

    @property
    def weight(self) -> Tensor:
        matrix = self._matrix
        return matrix.scheme.rows(matrix, torch.arange(matrix.shape[0], device=self._device))


class Projection(Stand):
    def __init__(self, module: nn.Linear, linear: Linear, device: str):
        super().__init__(linear, device)
        self.in_features, self.out_features = module.in_features, module.out_features
        self._linear = linear

    @property
    def bias(self) -> Tensor | None:
        return self._linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return self._linear(x)


class Lookup(Stand):
    def __init__(self, module: nn.Embedding, table: Embedding, device: str):
        super().__init__(table, device)
        self.num_embeddings, self.embedding_dim = module.num_embeddings, module.embedding_dim
        self._table = table
        self._scale = getattr(module, "embed_scale", 1.0)

    def forward(self, input_ids: Tensor) -> Tensor:
        rows = self._table(input_ids)
        if isinstance(self._scale, Tensor):
            return rows * self._scale.to(rows)
        return rows if self._scale == 1.0 else rows * self._scale


class TiedHead(Stand):
    """An output head that is the embedding's table."""

    def __init__(self, module: nn.Linear, table: Embedding, device: str):
        super().__init__(table, device)
        self._table = table
        self.bias = module.bias

    def forward(self, x: Tensor) -> Tensor:
        logits = self._table.logits(x)
        return logits if self.bias is None else logits + self.bias


class Kept(Layer):
    """Parameters, and buffers that checkpoints have, that a module keeps to itself; the attributes have their names."""

    def __init__(self, module: nn.Module, tensors: dict[str, tuple[Tensor, torch.dtype]]):
        self._module = module
        self._shapes = {name: tensor.shape for name, (tensor, _) in tensors.items()}
        for name, (tensor, dtype) in tensors.items():
            setattr(self, name, self.declare(*(tensor.shape or (1,)), dtype=dtype))

    def settle(self) -> None:
        """When everything is loaded: give them to the module."""
        for name, shape in self._shapes.items():
            tensor = getattr(self, name).view(shape)
            if name in self._module._buffers:
                self._module._buffers[name] = tensor
            else:
                self._module._parameters[name] = nn.Parameter(tensor, requires_grad=False)
            delattr(self, name)


def replace_modules(model: PreTrainedModel, shares: Shares, ops: Ops, dtype: torch.dtype, device: str) -> dict[str, Layer]:
    """By the paths of the modules, which with the names of parameters are the names in the checkpoint."""
    layers: dict[str, Layer] = {}
    modules = dict(model.named_modules())
    kept_in_fp32 = tuple(model._get_dtype_plan(dtype))
    embedding: Any = model.get_input_embeddings()
    table_path = next(path for path, module in modules.items() if module is embedding)
    heads = {
        path: module
        for path, module in modules.items()
        if type(module) is nn.Linear and model.all_tied_weights_keys.get(f"{path}.weight") == f"{table_path}.weight"
    }
    if type(embedding) is nn.Embedding or type(embedding).__name__.endswith(_SCALED):
        table = Embedding(ops, *embedding.weight.shape, tied=bool(heads), dtype=dtype)
        layers[table_path] = table
        model.set_submodule(table_path, Lookup(embedding, table, device))
        for path, head in heads.items():
            model.set_submodule(path, TiedHead(head, table, device))
    for path, module in modules.items():
        is_plain = type(module) is nn.Linear and path.rpartition(".")[2] not in _ROUTERS and path not in heads
        if is_plain and not any(part in path for part in kept_in_fp32):
            inputs, outputs = shares.get(path, (module.in_features, module.out_features))
            linear = Linear(ops, inputs, (outputs,), bias=module.bias is not None, dtype=dtype)
            layers[path] = linear
            model.set_submodule(path, Projection(module, linear, device))
    for path, module in model.named_modules():
        tensors = {}
        for name, tensor in _stored(module).items():
            full = f"{path}.{name}".removeprefix(".")
            in_fp32 = tensor.is_floating_point() and any(part in full for part in kept_in_fp32)
            if full not in model.all_tied_weights_keys:
                tensors[name] = (tensor, torch.float32 if in_fp32 else tensor.dtype)
        if tensors:
            layers[path] = Kept(module, tensors)
    return layers


def tie(model: PreTrainedModel) -> None:
    """Let parameters that share their values be one. Heads on the embedding's table are already."""
    for target, source in model.all_tied_weights_keys.items():
        (owner, _, name), (giver, _, given) = target.rpartition("."), source.rpartition(".")
        module, other = model.get_submodule(owner), model.get_submodule(giver)
        if name in module._parameters:
            shared = other._parameters[given] if given in other._parameters else nn.Parameter(getattr(other, given), False)
            module._parameters[name] = shared


def _stored(module: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint has of the module itself."""
    buffers = {name: b for name, b in module._buffers.items() if name not in module._non_persistent_buffers_set}
    return {name: tensor for name, tensor in [*module._parameters.items(), *buffers.items()] if tensor is not None}
