"""Tensors of a GGUF file under the names of a Hugging Face checkpoint, unpacked a piece at a time."""

import re
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.errors import ConfigError
from minivllm.model.loading.dequantize import FORMATS
from minivllm.model.loading.source import TensorSource
from minivllm.model.quantization.grouped import GROUP, Form
from minivllm.utils.gguf import GGUFFile, TensorInfo
from minivllm.utils.memory import drop_pages

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Weights unpacked at once: what is made on the way stays in the cache, and torch does not divide operations on so few, whose
# threads would wait for each other at every one. The threads are ours instead, each with a band of the tensor.
_CHUNK = 1 << 15
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Formats of 32 weights a block that kernels multiply as they are: bits, and what a value of zero stands for, in scales;
# None: the block says so itself.
_GROUPED: dict[str, tuple[int, int | None]] = {"Q4_0": (4, -8), "Q4_1": (4, None), "Q8_0": (8, -128)}
_NO_WEIGHTS = {"rope_freqs.weight"}  # config.gguf_model reads it


class GGUFSource(TensorSource):
    """Weights in `dtype`, however they are stored; those of `keep_packed` as values, scales and least in place of weight."""

    described_by = "metadata"

    def __init__(self, path: Path, spec: ModelSpec, dtype: torch.dtype):
        self._file = GGUFFile(path)
        self._dtype = dtype
        self._pool = ThreadPoolExecutor(torch.get_num_threads())
        # Llama files have the two halves of each rotary pair side by side; here they are half a head apart.
        paired = self._file.text("general.architecture") == "llama"
        self._heads = {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads} if paired else {}
        self._parts: dict[str, str] = {}  # of the tensors that are kept packed
        self._tensors = {_name(name): info for name, info in self._file.tensors.items() if name not in _NO_WEIGHTS}

    def packed_form(self, names: tuple[str, ...]) -> Form | None:
        types = [self._tensors[name].type.name if name in self._tensors else "" for name in names]
        found = {_GROUPED[kind][0] if kind in _GROUPED else None for kind in types}
        bits = found.pop() if len(found) == 1 else None
        return None if bits is None else Form(bits, GROUP)

    def keep_packed(self, names: tuple[str, ...], form: Form) -> None:
        for name in names:
            info = self._tensors.pop(name)
            for part in ("values", "scales", "least"):
                packed = name.removesuffix("weight") + part
                self._tensors[packed] = info
                self._parts[packed] = part

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
            tensor = self._unpack(info, FORMATS[info.type.name])
        heads = next((self._heads[part] for part in name.split(".") if part in self._heads), 0)
        if heads:
            tensor = tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
        return tensor

    def release(self, name: str) -> None:
        info = self._tensors[name]
        drop_pages(self._file.data, info.begin, info.end)

    def close(self) -> None:
        self._tensors.clear()
        self._pool.shutdown()

    def _shape(self, name: str) -> tuple[int, ...]:
        info = self._tensors[name]
        if name not in self._parts:
            return info.shape
        bits = _GROUPED[info.type.name][0]
        return (
            *info.shape[:-1],
            info.shape[-1] * bits // 8 if self._parts[name] == "values" else info.shape[-1] // info.type.block,
        )

    def _part(self, name: str, info: TensorInfo) -> Tensor:
        """values uint8, scales or least float16, of a weight kept packed."""
        bits, least = _GROUPED[info.type.name]
        blocks = self._bytes(info).view(-1, info.type.block_bytes)
        if self._parts[name] == "values":
            values = blocks[:, -info.type.block * bits // 8 :]
            return (values if bits == 4 else values ^ 128).reshape(self._shape(name))
        at = 2 if self._parts[name] == "least" and least is None else 0
        numbers = blocks[:, at : at + 2].contiguous().view(torch.float16)
        if self._parts[name] == "least" and least is not None:
            numbers = numbers * least
            if not numbers.isfinite().all():
                raise ConfigError(f"{self._file.path}: the scales of {name} are too large to be kept packed.", param="model")
        return numbers.reshape(self._shape(name))

    def _bytes(self, info: TensorInfo) -> Tensor:
        if info.begin == info.end:
            return torch.empty(0, dtype=torch.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the buffer is read-only: nobody writes to it
            return torch.frombuffer(self._file.data, dtype=torch.uint8, count=info.end - info.begin, offset=info.begin)

    def _unpack(self, info: TensorInfo, unpack: Callable[[Tensor], Tensor]) -> Tensor:
        out = torch.empty(info.shape, dtype=self._dtype)
        blocks, weights = self._bytes(info).view(-1, info.type.block_bytes), out.view(-1, info.type.block)
        step = _CHUNK // info.type.block

        def unpack_band(begin: int, end: int) -> None:
            for at in range(begin, end, step):
                till = min(at + step, end)
                weights[at:till] = unpack(blocks[at:till])

        threads = torch.get_num_threads()
        bounds = [len(blocks) * i // threads for i in range(threads + 1)]
        list(self._pool.map(unpack_band, bounds[:-1], bounds[1:]))
        return out


def _name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; a name that we do not know stays, and is complained of."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _NAMES:
        return name
    return (f"model.layers.{match[1]}." if match[1] else "") + f"{_NAMES[match[2]]}.{match[3]}"
