"""Tensors of a GGUF file under the names of a Hugging Face checkpoint: unpacked a piece at a time, or kept packed."""

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from minivllm.config.gguf_model import turns_pairs
from minivllm.config.model_spec import ModelSpec
from minivllm.errors import ConfigError
from minivllm.model.loading.gguf_blocks import FORMATS
from minivllm.model.loading.gguf_names import named_tensors
from minivllm.model.loading.source import TensorSource
from minivllm.model.quantization.grouped import Form
from minivllm.utils.gguf import TensorInfo, read_gguf
from minivllm.utils.memory import drop_pages

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Weights unpacked at once: what is made on the way stays in the cache, and torch does not divide operations on so few, whose
# threads would wait for each other at every one. The threads are ours instead, each with a band of the tensor.
_CHUNK = 1 << 15


class GGUFSource(TensorSource):
    """Weights in `dtype`, however they are stored; those of `keep_packed` as values, scales and least in place of weight."""

    described_by = "metadata"

    def __init__(self, path: Path, spec: ModelSpec, dtype: torch.dtype):
        self._file = read_gguf(path)
        self._dtype = dtype
        self._pool = ThreadPoolExecutor(torch.get_num_threads())
        self._heads = {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads} if turns_pairs(self._file) else {}
        self._norm_plus_one = spec.norm_plus_one
        self._parts: dict[str, tuple[str, Form]] = {}  # of the tensors that are kept packed
        self._tensors = dict(named_tensors(self._file, spec))

    def packed_form(self, names: tuple[str, ...]) -> Form | None:
        """The smallest form that holds all these tensors, or None if one is not packed."""
        types = [self._tensors[name].type.name if name in self._tensors else "" for name in names]
        forms = [FORMATS[kind].form for kind in types if kind in FORMATS]
        if not forms or len(forms) < len(types):
            return None
        return Form(max(form.bits for form in forms), min(form.group for form in forms))

    def keep_packed(self, names: tuple[str, ...], form: Form) -> None:
        for name in names:
            info = self._tensors.pop(name)
            for part in ("values", "scales", "least"):
                packed = name.removesuffix("weight") + part
                self._tensors[packed] = info
                self._parts[packed] = part, form

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: self._shape(name) for name in self._tensors}

    def read(self, name: str) -> Tensor:
        info = self._tensors[name]
        plain = _PLAIN.get(info.type.name)
        if name in self._parts:
            tensor = self._part(name, info)
        elif plain is not None:
            tensor = self._bytes(info).view(plain).view(info.shape)
        else:
            tensor = self._convert(info, info.shape, self._dtype, FORMATS[info.type.name].unpack)
        if self._norm_plus_one and name.endswith("norm.weight"):
            tensor = tensor.float() - 1
        heads = next((self._heads[part] for part in name.split(".") if part in self._heads), 0)
        if heads:
            tensor = tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
        return tensor

    def release(self, name: str) -> None:
        info = self._tensors[name]
        drop_pages(info.data, info.begin, info.end)

    def close(self) -> None:
        self._tensors.clear()
        self._pool.shutdown()

    def _shape(self, name: str) -> tuple[int, ...]:
        info = self._tensors[name]
        if name not in self._parts:
            return info.shape
        part, form = self._parts[name]
        *rows, columns = info.shape
        return (*rows, form.width(part, columns))

    def _part(self, name: str, info: TensorInfo) -> Tensor:
        """values uint8, scales or least float16, of a weight kept packed."""
        (part, form), kind = self._parts[name], FORMATS[info.type.name]
        if part == "values":
            return self._convert(info, self._shape(name), torch.uint8, lambda blocks: kind.pack_values(blocks, form))
        pack = kind.pack_scales if part == "scales" else kind.pack_least
        numbers = self._convert(info, self._shape(name), torch.float16, lambda blocks: pack(blocks, form))
        if not numbers.isfinite().all():
            raise ConfigError(f"{self._file.path}: the scales of {name} are too large to be kept packed.", param="model")
        return numbers

    def _bytes(self, info: TensorInfo) -> Tensor:
        if info.begin == info.end:
            return torch.empty(0, dtype=torch.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the buffer is read-only: nobody writes to it
            return torch.frombuffer(info.data, dtype=torch.uint8, count=info.end - info.begin, offset=info.begin)

    def _convert(
        self, info: TensorInfo, shape: tuple[int, ...], dtype: torch.dtype, convert: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """What `convert` makes of all blocks, in bands by the threads."""
        out, blocks = torch.empty(shape, dtype=dtype), self._bytes(info).view(-1, info.type.block_bytes)
        if not len(blocks):
            return out
        of_blocks = out.view(len(blocks), prod(shape) // len(blocks))
        step = _CHUNK // info.type.block

        def convert_band(begin: int, end: int) -> None:
            for at in range(begin, end, step):
                till = min(at + step, end)
                of_blocks[at:till] = convert(blocks[at:till])

        threads = torch.get_num_threads()
        bounds = [len(blocks) * i // threads for i in range(threads + 1)]
        list(self._pool.map(convert_band, bounds[:-1], bounds[1:]))
        return out
