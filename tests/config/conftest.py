"""A model folder that is large enough for the configuration: JSON files and an empty file of weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}


@pytest.fixture
def llama() -> dict[str, Any]:
    return dict(LLAMA)


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., str]:
    """`make_model(config field=…, files={name: object})` → the folder."""

    def make(files: dict[str, Any] | None = None, **changes: Any) -> str:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        for name, content in {"config.json": {**LLAMA, **changes}, **(files or {})}.items():
            (folder / name).write_text(json.dumps(content))
        (folder / "model.safetensors").touch()
        return str(folder)

    return make
