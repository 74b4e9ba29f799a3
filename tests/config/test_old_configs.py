"""config.json files as transformers 4 wrote them mean the same as what transformers 5 makes of them."""

from dataclasses import replace
from typing import Any

import pytest
import transformers

from minivllm.config import ModelSpec

_FACTORS = [1.0 + i / 10 for i in range(48)]
OLD: dict[str, dict[str, Any]] = {
    "GPTNeoX": {"rotary_pct": 0.25, "rotary_emb_base": 20000, "num_hidden_layers": 4},
    "StableLm": {"partial_rotary_factor": 0.25, "rope_theta": 20000, "num_hidden_layers": 4},
    "Phi": {"partial_rotary_factor": 0.25, "num_hidden_layers": 4},
    "Phi3": {
        "rope_scaling": {"type": "longrope", "short_factor": _FACTORS, "long_factor": _FACTORS},
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "sliding_window": 262144,
        "num_hidden_layers": 4,
        "pad_token_id": 0,
    },
    "Llama": {
        "rope_theta": 500000.0,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
        | {"original_max_position_embeddings": 8192},
        "max_position_embeddings": 131072,
        "num_hidden_layers": 4,
    },
    "Qwen2": {
        "use_sliding_window": True,
        "sliding_window": 512,
        "max_window_layers": 2,
        "num_hidden_layers": 4,
        "rope_theta": 1000000.0,
    },
    "Gemma2": {"sliding_window": 512, "num_hidden_layers": 5, "rope_theta": 10000.0},
    "Gemma3Text": {
        "sliding_window": 512,
        "sliding_window_pattern": 3,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "num_hidden_layers": 7,
    },
    "Cohere2": {"sliding_window": 512, "sliding_window_pattern": 3, "num_hidden_layers": 7, "rope_theta": 50000},
    "Olmo3": {
        "sliding_window": 512,
        "num_hidden_layers": 9,
        "rope_theta": 500000,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
    },
    "Exaone4": {"sliding_window": 512, "sliding_window_pattern": 4, "num_hidden_layers": 9, "rope_theta": 1000000},
    "SmolLM3": {"no_rope_layer_interval": 3, "num_hidden_layers": 7, "rope_theta": 5000000.0},
    "GptOss": {"sliding_window": 128, "num_hidden_layers": 5, "rope_theta": 150000}
    | {"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}},
    "DeepseekV2": {
        "num_hidden_layers": 4,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
        "rope_theta": 10000,
        "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 0.7, "mscale_all_dim": 0.9, "beta_fast": 32, "beta_slow": 1}
        | {"original_max_position_embeddings": 4096},
    },
    "Glm4Moe": {"partial_rotary_factor": 0.5, "head_dim": 64, "rope_theta": 1000000, "num_hidden_layers": 4},
}


@pytest.mark.parametrize("name", OLD)
def test_same_as_new(name: str) -> None:
    config_class = getattr(transformers, f"{name}Config")
    named = {"architectures": [f"{name.removesuffix('Text')}ForCausalLM"]}
    new = ModelSpec.from_hf({**config_class(**OLD[name]).to_dict(), **named})
    usual = {**config_class().to_dict(), "layer_types": None, "rope_parameters": None, "no_rope_layers": None}
    for unset in ("sliding_window_pattern", "_sliding_window_pattern"):
        usual.pop(unset, None)
    old = ModelSpec.from_hf({**usual, **OLD[name], **named})
    assert replace(old, eos_token_ids=new.eos_token_ids) == new
