"""`examples/get_demo_model.py`: what it writes of a small file, and that a complete folder is left alone."""

import json
import runpy
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import NUMBERS, write_model
from safetensors.torch import load_file

from minivllm.config import EngineArgs
from minivllm.model.loading.gguf import GGUFSource
from minivllm.text.tokenizer import load_tokenizer

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "get_demo_model.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_a_converted_file_is_the_same_model(script: dict[str, Any], tmp_path: Path) -> None:
    path, folder = write_model(tmp_path / "m.gguf", number=NUMBERS["Q4_1"]), tmp_path / "folder"
    folder.mkdir()
    script["convert"](path, folder)
    before, after = EngineArgs(str(path)).resolve(), EngineArgs(str(folder)).resolve()
    assert replace(after.spec, dtype=before.spec.dtype) == before.spec and after.spec.dtype == "bfloat16"
    assert after.generation.eos_token_ids == before.generation.eos_token_ids
    one, two = load_tokenizer(path), load_tokenizer(folder)
    assert one.encode("hello  12<mark></s>") == two.encode("hello  12<mark></s>")
    assert (one.template_tokens, one.special_ids, one.chat_template) == (
        two.template_tokens,
        two.special_ids,
        two.chat_template,
    )
    source, written = GGUFSource(path, before.spec, torch.bfloat16), load_file(folder / "model.safetensors")
    assert set(written) == set(source.shapes())
    assert all(torch.equal(source.read(name).to(torch.bfloat16), weight) for name, weight in written.items())
    source.close()


def test_a_complete_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"Demo model: {tmp_path} is there already.\n"


def test_the_fetched_model_is_whole(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]) == (30, 576, 49152)
    with open(smollm2 / "model.safetensors", "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__")
    assert len(header) == 272 and {entry["dtype"] for entry in header.values()} == {"BF16"}
    end = max(entry["data_offsets"][1] for entry in header.values())
    assert (smollm2 / "model.safetensors").stat().st_size == 8 + length + end
