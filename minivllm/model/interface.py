"""`Model` and `CausalLM`: what the worker and the loader ask of a model family."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.context import ForwardContext
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.linear import Linear
from minivllm.model.layers.shard import Layout
from minivllm.model.loading.source import TensorSource


class Model(Layer, ABC):
    """Layers from token ids to hidden states. Built without weights; `loading.load_model` fills them in.

    `weight_map` has the names in the checkpoint of components of a parameter's path, several where several tensors are stacked
    into one parameter: {"self_attn": ("attn",), "qkv_proj": ("q_proj", "k_proj", "v_proj")}. An empty name leaves the component
    out; {} in a name stands for 0, 1, ... A component that is not in the map has the same name in the checkpoint.
    `layouts`, by the same components: tensors that the checkpoint has in another order. `base` is the attribute that holds
    what is the same under any head; checkpoints of that part alone have names without it.
    """

    base = "model"
    weight_map: Mapping[str, tuple[str, ...]] = {}
    layouts: Mapping[str, Layout] = {}
    spec: ModelSpec  # once loaded, what the KV cache must know of the layers

    @abstractmethod
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str, max_model_len: int): ...

    @abstractmethod
    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """int64 [num_tokens] each -> final hidden states [num_tokens, hidden_size]."""

    @abstractmethod
    def set_pooling_head(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, num_labels: int) -> None:
        """Before loading: have a classifier in the place of any other head; without labels, no head at all."""

    @abstractmethod
    def classify(self, pooled: Tensor) -> Tensor:
        """[rows, hidden_size] -> logits [rows, num_labels]."""

    def adapt(self, source: TensorSource) -> TensorSource:
        """The checkpoint as this model wants to read it."""
        return source

    def loaded(self) -> None:
        """Called once, when all layers have finished loading."""

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint tensor that no parameter asks for is known to be of no use."""
        return False


class CausalLM(Model):
    """A decoder; its output head, where it has one of its own, is `lm_head`."""

    lm_head: Linear | None
    score: Linear

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden_size] -> [rows, vocab_size]."""

    def set_pooling_head(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, num_labels: int) -> None:
        self.lm_head = None
        if num_labels and spec.has_last_layer:
            self.score = Linear(ops, spec.hidden_size, (num_labels,), bias=False, dtype=dtype)

    def classify(self, pooled: Tensor) -> Tensor:
        return self.score(pooled)
