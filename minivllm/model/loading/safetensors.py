"""Tensors of a folder with safetensors files, one or many shards, by mapping the files into memory.

A file is: 8 bytes little endian n | n bytes of JSON {name: {dtype, shape, data_offsets: [begin, end]}} | the data.
"""

import json
import mmap
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minivllm.config.model_files import SAFETENSORS_INDEX
from minivllm.errors import ConfigError
from minivllm.model.loading.folder import find_tensors
from minivllm.model.loading.source import TensorSource
from minivllm.utils.memory import drop_pages

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
_MAX_HEADER = 100_000_000  # bytes, as in the safetensors library


@dataclass(slots=True)
class _Entry:
    file: "_File"
    dtype: str
    shape: tuple[int, ...]
    begin: int  # offsets in the file
    end: int


class SafetensorsFolder(TensorSource):
    """See `folder.find_tensors`."""

    def __init__(self, folder: Path, pattern: str = "*.safetensors"):
        files = list(folder.glob(pattern))
        if not files and not (folder / SAFETENSORS_INDEX).is_file():
            raise ConfigError(f"{folder} has no weights: no *.safetensors file.", param="model")
        self._entries = find_tensors(folder, SAFETENSORS_INDEX, files, lambda path: _File(path).entries())

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self._entries.items()}

    def read(self, name: str) -> Tensor:
        entry = self._entries[name]
        dtype = DTYPES.get(entry.dtype)
        if dtype is None:
            raise ConfigError(
                f"{entry.file.path}: {name} has number type {entry.dtype}, which is not supported.", param="model"
            )
        return entry.file.view(entry.begin, dtype, entry.shape)

    def release(self, name: str) -> None:
        entry = self._entries[name]
        drop_pages(entry.file.data, entry.begin, entry.end)

    def close(self) -> None:
        # A map goes with the last tensor that refers to it; unmapping at once could pull the ground from under a view.
        self._entries.clear()


class _File:
    """One mapped file."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with path.open("rb") as f:
                self._size = os.fstat(f.fileno()).st_size
                if self._size < 8:
                    raise self._broken("it is too short")
                self.data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as e:
            raise ConfigError(f"cannot read {path}: {e.strerror}.", param="model") from e
        if hasattr(mmap, "MADV_WILLNEED"):
            self.data.madvise(mmap.MADV_WILLNEED)

    def entries(self) -> dict[str, _Entry]:
        length = int.from_bytes(self.data[:8], "little")
        if length > _MAX_HEADER or 8 + length > self._size:
            raise self._broken("its header does not fit in it")
        try:
            header = json.loads(self.data[8 : 8 + length])
        except ValueError as e:
            raise self._broken("its header is not JSON") from e
        if not isinstance(header, dict):
            raise self._broken("its header is not a JSON object")
        return {name: self._entry(name, fields, 8 + length) for name, fields in header.items() if name != "__metadata__"}

    def _entry(self, name: str, fields: Any, start: int) -> _Entry:
        try:
            shape = tuple(int(size) for size in fields["shape"])
            begin, end = (int(offset) for offset in fields["data_offsets"])
            kind = str(fields["dtype"])
        except (KeyError, TypeError, ValueError) as e:
            raise self._broken(f"the header entry of {name} is malformed") from e
        if start + end > self._size:
            raise self._broken(f"it ends before the data of {name} ({self._size} of at least {start + end} bytes)")
        if kind in DTYPES and (begin < 0 or end - begin != prod(shape) * DTYPES[kind].itemsize):
            raise self._broken(f"the offsets of {name} do not fit its shape")
        return _Entry(self, kind, shape, start + begin, start + end)

    def view(self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        count = prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the buffer is read-only: nobody writes to it
            flat = torch.frombuffer(self.data, dtype=dtype, count=count, offset=offset)
        return flat.view(shape)

    def _broken(self, why: str) -> ConfigError:
        return ConfigError(f"{self.path} is not a complete safetensors file: {why}. Fetch it again.", param="model")
