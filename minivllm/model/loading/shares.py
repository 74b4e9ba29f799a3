"""`ShareWriter`: the files of one rank in a folder of `sharded_state`, whose tensors have the paths of parameters as names."""

import importlib
import shutil
from pathlib import Path

import torch
from torch import Tensor

from minivllm.config.sharded_state import PATTERN

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.gguf", ".*")


class ShareWriter:
    """A file has at most `max_bytes` of tensors, or a single larger one; so much memory is taken, too."""

    def __init__(self, folder: Path, rank: int, max_bytes: int):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._rank = rank
        self._max_bytes = max_bytes
        self._tensors: dict[str, Tensor] = {}
        self._num_files = 0

    def add(self, name: str, tensor: Tensor) -> None:
        if self._tensors and sum(t.nbytes for t in self._tensors.values()) + tensor.nbytes > self._max_bytes:
            self.flush()
        self._tensors[name] = tensor.clone(memory_format=torch.contiguous_format)

    def flush(self) -> None:
        name = PATTERN.format(rank=self._rank, part=self._num_files)
        package = importlib.import_module("safetensors.torch")  # only for this, and every start would pay for it
        package.save_file(self._tensors, self._folder / name, metadata={"format": "pt"})
        self._tensors = {}
        self._num_files += 1


def copy_all_but_weights(source: Path, target: Path) -> None:
    """Configuration, tokenizer and what else a model folder has."""
    weights = shutil.ignore_patterns(*_WEIGHTS)

    def ignored(folder: str, names: list[str]) -> set[str]:
        return weights(folder, names) if Path(folder) == source else set()

    shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
