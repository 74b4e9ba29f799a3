"""Tensors of a folder with PyTorch files (pytorch_model*.bin, *.pt), mapped into memory and never run."""

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from minivllm.config.model_files import PT_INDEX, pt_files
from minivllm.errors import ConfigError
from minivllm.model.loading.folder import find_tensors
from minivllm.model.loading.source import TensorSource
from minivllm.utils.memory import drop_mapped

_FIRST = (b"P", b"\x80")  # bytes of zip files and of pickles


class PtFolder(TensorSource):
    """See `folder.find_tensors`."""

    def __init__(self, folder: Path):
        self._tensors = find_tensors(folder, PT_INDEX, pt_files(folder), _load)
        self._shapes = {name: tuple(entry.tensor.shape) for name, entry in self._tensors.items()}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor:
        return self._tensors[name].tensor

    def release(self, name: str) -> None:
        tensor, is_mapped = self._tensors[name]
        if is_mapped:
            drop_mapped(tensor.data_ptr(), tensor.nbytes)

    def close(self) -> None:
        self._tensors.clear()


class _Entry(NamedTuple):
    tensor: Tensor
    is_mapped: bool


def _load(path: Path) -> dict[str, _Entry]:
    """Only what is no code: a pickle may hold instructions for anything at all."""
    try:
        with path.open("rb") as file:
            if file.read(1) not in _FIRST:
                raise _incomplete(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the refusal says too
            is_mapped = zipfile.is_zipfile(path)  # before torch 1.6 it was another format, which has to be read
            found = torch.load(path, map_location="cpu", mmap=is_mapped, weights_only=True)
    except pickle.UnpicklingError as e:
        raise ConfigError(
            f"{path} holds more than tensors, and to read it would be to run code from it: convert it to safetensors.",
            param="model",
        ) from e
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror}.", param="model") from e
    except (RuntimeError, ValueError, EOFError, KeyError) as e:
        raise _incomplete(path) from e
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ConfigError(f"{path} is not a checkpoint: it does not hold tensors by name.", param="model")
    return {str(name): _Entry(tensor.detach(), is_mapped) for name, tensor in found.items()}


def _incomplete(path: Path) -> ConfigError:
    return ConfigError(f"{path} is not a complete PyTorch file. Fetch it again.", param="model")
