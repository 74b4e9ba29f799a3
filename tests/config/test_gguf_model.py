"""A GGUF file in place of a model folder: which file is meant, and the configuration that its metadata give."""

import math
from pathlib import Path

import numpy as np
import pytest
from gguf_files import file_bytes, model_metadata, model_shapes, write_model

from minivllm.config import EngineArgs
from minivllm.errors import ConfigError


def refusal(model: Path, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        EngineArgs(str(model), **options).resolve()
    assert "\n" not in caught.value.message
    return caught.value.message


def test_the_whole_configuration(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", **{"general.sampling.temp": 0.5, "general.sampling.top_k": 20})
    config = EngineArgs(str(path)).resolve()
    spec = config.spec
    assert (config.model.path, config.model.tokenizer, config.load.load_format) == (str(path), str(path), "gguf")
    assert (spec.architecture, spec.vocab_size, spec.hidden_size, spec.intermediate_size) == ("LlamaForCausalLM", 268, 64, 96)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, 4, 2, 16)
    assert (spec.max_position_embeddings, config.model.max_model_len, spec.layers[0].rope.theta) == (128, 128, 5000.0)
    assert math.isclose(spec.norm_eps, 1e-5, rel_tol=1e-6)
    assert spec.tie_word_embeddings and not spec.qkv_bias and not spec.mlp_bias
    assert (spec.dtype, config.model.dtype) == ("float32", "bfloat16")
    assert config.generation.eos_token_ids == (1,) and config.generation.num_tokens == 266
    assert config.generation.defaults == {"temperature": 0.5, "top_k": 20}
    assert EngineArgs(str(path), generation_config="vllm").resolve().generation.defaults == {}


def test_qwen2(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen2", number=1, **{"tokenizer.ggml.eot_token_id": 0})
    config = EngineArgs(str(path)).resolve()
    assert (config.spec.architecture, config.spec.qkv_bias, config.spec.o_bias) == ("Qwen2ForCausalLM", True, False)
    assert config.model.dtype == "float16" and config.generation.eos_token_ids == (1, 0)


def test_overrides_and_rope_scaling(tmp_path: Path) -> None:
    scaled = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    path = write_model(tmp_path / "m.gguf", **scaled, **{"llama.rope.scaling.original_context_length": 32})
    spec = EngineArgs(str(path), hf_overrides={"vocab_size": 260}).resolve().spec
    assert (spec.vocab_size, spec.layers[0].rope.type, spec.layers[0].rope.factor) == (260, "yarn", 4.0)
    assert spec.layers[0].rope.original_max_position_embeddings == 32
    assert "rope scaling 'longrope'" in refusal(write_model(path, **{"llama.rope.scaling.type": "longrope"}))


def with_rope_divisors(path: Path, divisors: np.ndarray) -> Path:
    tensors = {name: (0, shape, bytes(4 * math.prod(shape))) for name, shape in model_shapes().items()}
    tensors["rope_freqs.weight"] = (0, divisors.shape, divisors.astype("<f4").tobytes())
    path.write_bytes(file_bytes(model_metadata() | {"llama.rope.freq_base": 500000.0}, tensors))
    return path


def test_llama3_rope_scaling_is_known_by_its_effect(tmp_path: Path) -> None:
    wavelengths = 2 * math.pi * 500000.0 ** (np.arange(0, 16, 2) / 16)
    smooth = ((8192 / wavelengths - 1) / (4 - 1)).clip(0, 1)
    divisors = 1 / ((1 - smooth) / 32 + smooth)
    assert 1 < divisors[4] < 32  # one is between
    rope = EngineArgs(str(with_rope_divisors(tmp_path / "m.gguf", divisors))).resolve().spec.layers[0].rope
    assert (rope.type, rope.factor, rope.low_freq_factor, rope.high_freq_factor) == ("llama3", 32.0, 1.0, 4.0)
    assert rope.original_max_position_embeddings == 8192
    other = refusal(with_rope_divisors(tmp_path / "n.gguf", divisors * 1.1))
    assert other.endswith("its rope_freqs are not those of Llama 3, which is not supported.")


def test_folders(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    assert EngineArgs(str(tmp_path)).resolve().model.path == str(path)
    assert refusal(tmp_path, load_format="safetensors") == (
        f"{tmp_path} has no config.json: it is not the folder of a Hugging Face model."
    )
    assert "reads a folder" in refusal(path, load_format="safetensors")
    (tmp_path / "model.safetensors").touch()
    assert "has no config.json" in refusal(tmp_path)
    assert EngineArgs(str(tmp_path), load_format="gguf").resolve().model.path == str(path)
    write_model(tmp_path / "n.gguf")
    assert refusal(tmp_path, load_format="gguf").endswith("has 2 models in *.gguf files: give the path of the one to load.")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"general.architecture": "mamba"}, "Model architectures ['mamba'] are not supported for now. "
         "Supported architectures of GGUF files: llama, qwen2"),
        ({"split.count": 3}, "is part 1 of 3, and not named so: name them MODEL-00001-of-00003.gguf and so on"),
        ({"llama.expert_count": 8}, "config.json has no num_experts_per_tok"),
        ({"llama.rope.dimension_count": 8}, "turns 8 of 16 dimensions of a head, which is not supported."),
        ({"llama.attention.head_count": 0}, "num_attention_heads must be a positive integer, got 0"),
        ({"llama.block_count": "two"}, "llama.block_count has a wrong type"),
        ({"llama.attention.head_count_kv": [2, 2]}, "llama.attention.head_count_kv has a wrong type"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, change: dict, said: str) -> None:
    assert said in refusal(write_model(tmp_path / "m.gguf", **change))


def test_another_tokenizer(tmp_path: Path, make_model) -> None:
    path = write_model(tmp_path / "m.gguf")
    config = EngineArgs(make_model(vocab_size=268), tokenizer=str(path)).resolve()
    assert config.model.tokenizer == str(path) and config.generation.num_tokens == 266
    assert config.generation.eos_token_ids == (2, 1)
