"""Which attention back end serves a model, and why none does."""

import pytest
import torch

from minivllm.config.model_spec import ModelSpec
from minivllm.errors import ConfigError
from minivllm.model.attention.paged import PagedBackend
from minivllm.model.attention.select import select_backend


def spec_with(head_dim: int) -> ModelSpec:
    sizes = {"vocab_size": 8, "hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return ModelSpec.from_hf(
        {"architectures": ["LlamaForCausalLM"], **sizes, "head_dim": head_dim, "max_position_embeddings": 64}
    )


def test_heads_that_are_too_large_for_a_gpu_are_refused_there() -> None:
    assert select_backend(spec_with(256), torch.bfloat16, torch.bfloat16, "cuda") is PagedBackend
    assert select_backend(spec_with(512), torch.bfloat16, torch.bfloat16, "cpu") is PagedBackend
    with pytest.raises(ConfigError, match="paged: heads of 512 elements do not fit into a GPU's shared memory"):
        select_backend(spec_with(512), torch.bfloat16, torch.bfloat16, "cuda")
