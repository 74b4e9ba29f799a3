"""`CausalLM`: what the worker and the loader ask of a model family."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.kernels import Ops
from minivllm.model.context import ForwardContext
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.shard import Layout


class CausalLM(Layer, ABC):
    """A decoder with an output head. Built without weights; `loading.load_model` fills them in.

    `weight_map` has the names in the checkpoint of components of a parameter's path, several where several tensors are stacked
    into one parameter: {"self_attn": ("attn",), "qkv_proj": ("q_proj", "k_proj", "v_proj")}. An empty name leaves the component
    out; {} in a name stands for 0, 1, ... A component that is not in the map has the same name in the checkpoint.
    `layouts`, by the same components: tensors that the checkpoint has in another order.
    """

    weight_map: Mapping[str, tuple[str, ...]] = {}
    layouts: Mapping[str, Layout] = {}

    @abstractmethod
    def __init__(self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str, max_model_len: int): ...

    @abstractmethod
    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """int64 [num_tokens] each -> final hidden states [num_tokens, hidden_size]."""

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden_size] -> [rows, vocab_size]."""

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint tensor that no parameter asks for is known to be of no use."""
        return False
