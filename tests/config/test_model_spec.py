"""config.json of several families, as transformers 4 and 5 write it, to `ModelSpec`."""

from typing import Any

import pytest

from minivllm.config import ModelSpec
from minivllm.config.hf.parts import RopeSpec
from minivllm.errors import ConfigError


def test_llama(llama: dict[str, Any]) -> None:
    spec = ModelSpec.from_hf(llama)
    assert (spec.architecture, spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (
        "LlamaForCausalLM",
        2,
        4,
        2,
        16,
    )
    assert spec.layers[0].rope == RopeSpec(theta=500000.0, original_max_position_embeddings=4096)
    assert not (spec.qkv_bias or spec.o_bias or spec.mlp_bias or spec.tie_word_embeddings)
    assert (spec.dtype, spec.eos_token_ids, spec.sliding_window, spec.max_length) == ("bfloat16", (2,), None, 4096)


def test_the_two_ways_to_write_rope_are_equal(llama: dict[str, Any]) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 2048}
    old = ModelSpec.from_hf({**llama, "rope_scaling": {"type": "llama3", **scaling}})
    new = {k: v for k, v in llama.items() if k != "rope_theta"}
    new["rope_parameters"] = {"rope_type": "llama3", "rope_theta": 500000.0, **scaling}
    assert old == ModelSpec.from_hf(new)
    assert old.layers[0].rope == RopeSpec(theta=500000.0, type="llama3", factor=8.0, original_max_position_embeddings=2048)
    assert old.max_length == 4096  # llama3's max_position_embeddings is the scaled one already


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "linear", "factor": 2.0}, 8192),
        ({"rope_type": "dynamic", "factor": 4.0}, 16384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "yarn", "factor": 2.0}, 8192),
        ({"rope_type": "default"}, 4096),
    ],
)
def test_rope_scaling_multiplies_the_length(llama: dict[str, Any], rope: dict[str, Any], length: int) -> None:
    assert ModelSpec.from_hf({**llama, "rope_parameters": rope}).max_length == length


def test_yarn_fields(llama: dict[str, Any]) -> None:
    rope = {"rope_type": "yarn", "factor": 4, "beta_fast": 16, "mscale": 0.7, "attention_factor": 1.2, "truncate": False}
    found = ModelSpec.from_hf({**llama, "rope_parameters": rope}).layers[0].rope
    assert (found.beta_fast, found.beta_slow, found.mscale, found.attention_factor, found.truncate) == (
        16.0,
        1.0,
        0.7,
        1.2,
        False,
    )


def test_qwen2_has_biases_on_q_k_v_only_and_no_window_unless_it_says_so(llama: dict[str, Any]) -> None:
    qwen = {**llama, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 512, "max_window_layers": 2}
    spec = ModelSpec.from_hf({**qwen, "use_sliding_window": False})
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias, spec.sliding_window) == (True, False, False, None)
    assert ModelSpec.from_hf(qwen).sliding_window is None
    assert ModelSpec.from_hf({**qwen, "use_sliding_window": True}).sliding_window is None  # from layer 2 of 2 on
    assert ModelSpec.from_hf({**qwen, "use_sliding_window": True, "max_window_layers": 0}).sliding_window == 512
    mixed = ModelSpec.from_hf({**qwen, "use_sliding_window": True, "max_window_layers": 1})
    assert [layer.window for layer in mixed.layers] == [0, 512] and mixed.sliding_window is None


def test_mistral_has_its_window_in_every_layer(llama: dict[str, Any]) -> None:
    mistral = {**llama, "architectures": ["MistralForCausalLM"], "sliding_window": 1024}
    assert ModelSpec.from_hf(mistral).sliding_window == 1024
    assert ModelSpec.from_hf({**mistral, "sliding_window": None}).sliding_window is None
    assert ModelSpec.from_hf({**mistral, "layer_types": ["full_attention"] * 2}).sliding_window is None


def test_biases_of_llama(llama: dict[str, Any]) -> None:
    spec = ModelSpec.from_hf({**llama, "attention_bias": True, "mlp_bias": True})
    assert spec.qkv_bias and spec.o_bias and spec.mlp_bias


def test_head_dim_may_be_given(llama: dict[str, Any]) -> None:
    assert ModelSpec.from_hf({**llama, "head_dim": 32}).head_dim == 32


def test_key_value_heads_default_to_all(llama: dict[str, Any]) -> None:
    del llama["num_key_value_heads"]
    assert ModelSpec.from_hf(llama).num_kv_heads == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": []}, "names no architectures"),
        ({"architectures": ["GPT2LMHeadModel"], "hidden_size": None}, r"\['GPT2LMHeadModel'\] are not supported for now"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"vocab_size": -1}, "vocab_size must be a positive integer, got -1"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer"),
        ({"rope_scaling": {"type": "spiral", "factor": 2}}, "rope type 'spiral' is not supported"),
        ({"rope_scaling": {"type": "longrope", "factor": 2}}, "rope type 'longrope' needs short_factor"),
        ({"rope_scaling": {"type": "linear"}}, "rope type 'linear' needs a factor"),
        ({"rope_parameters": {"chunked": {"rope_type": "default"}}}, "no rope parameters for layers of type 'full_attention'"),
        ({"partial_rotary_factor": 0.3, "head_dim": 10}, "3 of 10 dimensions of a head cannot be turned"),
        (
            {"layer_types": ["sliding_attention"], "sliding_window": 8, "architectures": ["MistralForCausalLM"]},
            "fewer than its 2",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(llama: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelSpec.from_hf({**llama, **changes})


def test_gemma3_as_transformers_4_and_5_write_it() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 12, "vocab_size": 99, "intermediate_size": 96}
    common = {**sizes, "architectures": ["Gemma3ForCausalLM"], "sliding_window": 512, "max_position_embeddings": 32768}
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6, "rope_scaling": scaling}
    new = {
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, **scaling},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
    }
    spec = ModelSpec.from_hf({**common, **old})
    assert spec == ModelSpec.from_hf({**common, **new})
    assert [layer.window for layer in spec.layers] == ([512] * 5 + [0]) * 2
    assert [layer.rope.theta for layer in spec.layers[4:6] if layer.rope] == [1e4, 1e6]
    assert spec.tie_word_embeddings and spec.max_length == 32768  # the scaling of some layers does not extend it
