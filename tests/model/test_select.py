"""Which attention back end serves a model, and why none does."""

import pytest
import torch

from minivllm.config.model_spec import ModelSpec
from minivllm.errors import ConfigError
from minivllm.model.attention.latent import LatentBackend
from minivllm.model.attention.paged import PagedBackend
from minivllm.model.attention.select import select_backend


def spec_with(head_dim: int) -> ModelSpec:
    sizes = {"vocab_size": 8, "hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return ModelSpec.from_hf(
        {"architectures": ["LlamaForCausalLM"], **sizes, "head_dim": head_dim, "max_position_embeddings": 64}
    )


def test_latent_vectors_fit_into_registers() -> None:
    sizes = {"vocab_size": 8, "hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    latent = {"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 8, "qk_rope_head_dim": 64, "v_head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1}
    config = {"architectures": ["DeepseekV2ForCausalLM"], **sizes, **latent, **experts, "max_position_embeddings": 64}
    spec = ModelSpec.from_hf(config | {"first_k_dense_replace": 1, "topk_method": "greedy"})
    assert select_backend(spec, torch.bfloat16, torch.bfloat16, "cuda") is LatentBackend
    with pytest.raises(ConfigError, match="latent: vectors of 512 elements in float32 do not fit into a GPU's registers"):
        select_backend(spec, torch.float32, torch.float32, "cuda")


def test_heads_that_are_too_large_for_a_gpu_are_refused_there() -> None:
    assert select_backend(spec_with(256), torch.bfloat16, torch.bfloat16, "cuda") is PagedBackend
    assert select_backend(spec_with(512), torch.bfloat16, torch.bfloat16, "cpu") is PagedBackend
    with pytest.raises(ConfigError, match="paged: heads of 512 elements do not fit into a GPU's shared memory"):
        select_backend(spec_with(512), torch.bfloat16, torch.bfloat16, "cuda")
