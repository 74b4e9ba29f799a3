"""Writers of quantized weights, one number after the other as the formats' own tools describe them: each takes fp32 [rows,
columns] and gives the tensors by the ends of their names, and the weight that they stand for.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from bitsandbytes import functional
from torch import Tensor

Written = tuple[dict[str, Tensor], Tensor]


def pack(numbers: np.ndarray, bits: int, places: list[int] | None = None) -> Tensor:
    """uint [rows, columns] → int32 words along columns; `places`: which number is in a word's lowest bits, in the next, ..."""
    count = 32 // bits
    places = places or list(range(count))
    words = np.zeros((numbers.shape[0], numbers.shape[1] // count), dtype=np.uint32)
    for word in range(words.shape[1]):
        for i, place in enumerate(places):
            words[:, word] |= numbers[:, word * count + place].astype(np.uint32) << np.uint32(bits * i)
    return torch.from_numpy(words.view(np.int32))


def integers(weight: Tensor, groups: Tensor, bits: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
    """Values [rows, columns], fp16 scales and zeros [rows, groups], and the weight; `groups`: the group of each column."""
    count, top = int(groups.max()) + 1, 2**bits - 1
    scales, zeros = np.zeros((len(weight), count), np.float16), np.zeros((len(weight), count), np.uint32)
    values, again = np.zeros(weight.shape, np.uint32), torch.zeros_like(weight)
    for group in range(count):
        columns = (groups == group).nonzero()[:, 0]
        part = weight[:, columns].numpy()
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scales[:, group] = (high - low) / top
        zeros[:, group] = (top + 1) // 2 if symmetric else np.clip(np.round(-low / scales[:, group]), 1, top)
        scale, zero = scales[:, group, None].astype(np.float32), zeros[:, group, None].astype(np.float32)
        found = np.clip(np.round(part / scale) + zero, 0, top)
        values[:, columns] = found
        again[:, columns] = torch.from_numpy((found - zero) * scale)
    return values, scales, zeros, again


@dataclass
class GPTQ:
    bits: int = 4
    group: int = 32
    symmetric: bool = True
    act_order: bool = False
    form: str = "gptq"

    @property
    def config(self) -> dict[str, Any]:
        return {"quant_method": "gptq", "bits": self.bits, "group_size": self.group, "desc_act": self.act_order,
                "sym": self.symmetric, "checkpoint_format": self.form}  # fmt: skip

    def write(self, weight: Tensor) -> Written:
        columns = weight.shape[1]
        size = columns if self.group == -1 else self.group
        groups = torch.arange(columns) // size
        if self.act_order:  # the same for all that are multiplied by the same activations
            groups = groups[torch.randperm(columns, generator=torch.Generator().manual_seed(columns))]
        values, scales, zeros, again = integers(weight, groups, self.bits, self.symmetric)
        tensors = {
            ".qweight": pack(values, self.bits).t().contiguous(),
            ".qzeros": pack((zeros - (self.form == "gptq")).T, self.bits),
            ".scales": torch.from_numpy(scales.T.copy()),
            ".g_idx": groups.int(),
        }
        return tensors, again


@dataclass
class AWQ:
    group: int = 64

    @property
    def config(self) -> dict[str, Any]:
        return {"quant_method": "awq", "bits": 4, "group_size": self.group, "zero_point": True, "version": "gemm"}

    def write(self, weight: Tensor) -> Written:
        values, scales, zeros, again = integers(weight, torch.arange(weight.shape[1]) // self.group, 4, symmetric=False)
        places = [0, 2, 4, 6, 1, 3, 5, 7]
        tensors = {".qweight": pack(values.T, 4, places), ".qzeros": pack(zeros.T, 4, places)}
        return {**tensors, ".scales": torch.from_numpy(scales.T.copy())}, again


@dataclass
class Float8:
    """`scale`: tensor, static (with one for activations), or the size of a block."""

    scale: str | int = "tensor"

    @property
    def config(self) -> dict[str, Any]:
        found = {"quant_method": "fp8", "activation_scheme": "static" if self.scale == "static" else "dynamic"}
        return {**found, "weight_block_size": [self.scale, self.scale]} if isinstance(self.scale, int) else found

    def write(self, weight: Tensor) -> Written:
        if isinstance(self.scale, str):
            scale = weight.abs().max() / 448
            stored = (weight / scale).to(torch.float8_e4m3fn)
            activations = {".input_scale": torch.tensor(0.1)} if self.scale == "static" else {}
            return {".weight": stored, ".weight_scale": scale, **activations}, stored.float() * scale
        size = self.scale
        stored, again = torch.zeros_like(weight).to(torch.float8_e4m3fn), torch.zeros_like(weight)
        scales = torch.zeros(-(-weight.shape[0] // size), -(-weight.shape[1] // size))
        for i, j in np.ndindex(*scales.shape):
            block = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
            scales[i, j] = weight[block].abs().max() / 448
            stored[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
            again[block] = stored[block].float() * scales[i, j]
        return {".weight": stored, ".weight_scale_inv": scales}, again


@dataclass
class Compressed:
    """compressed-tensors: `kind` int or float; `group` 0: a scale for each row; activations in 8 bits, or as they are."""

    bits: int = 4
    group: int = 32
    kind: str = "int"
    symmetric: bool = True
    activations: bool = False

    @property
    def form(self) -> str:
        return "pack-quantized" if not self.activations else f"{self.kind}-quantized"

    @property
    def config(self) -> dict[str, Any]:
        weights = {"num_bits": self.bits, "type": self.kind, "symmetric": self.symmetric, "dynamic": False,
                   "strategy": "group" if self.group else "channel", "group_size": self.group or None}  # fmt: skip
        inputs = {"num_bits": 8, "type": self.kind, "dynamic": True, "strategy": "token"} if self.activations else None
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": self.form}
        return {"quant_method": "compressed-tensors", "format": self.form, "config_groups": {"group_0": group},
                "ignore": ["lm_head"]}  # fmt: skip

    def write(self, weight: Tensor) -> Written:
        if self.kind == "float":
            scale = weight.abs().amax(1, keepdim=True) / 448
            stored = (weight / scale).to(torch.float8_e4m3fn)
            return {".weight": stored, ".weight_scale": scale}, stored.float() * scale
        columns = weight.shape[1]
        values, scales, zeros, again = integers(
            weight, torch.arange(columns) // (self.group or columns), self.bits, self.symmetric
        )
        scale = torch.from_numpy(scales)
        if self.activations:
            return {".weight": torch.from_numpy(values.astype(np.int64) - 128).to(torch.int8), ".weight_scale": scale}, again
        tensors = {
            ".weight_packed": pack(values, self.bits),
            ".weight_scale": scale,
            ".weight_shape": torch.tensor(weight.shape),
        }
        if not self.symmetric:
            tensors[".weight_zero_point"] = pack(zeros.T, self.bits).t().contiguous()
        return tensors, again


@dataclass
class BitsAndBytes:
    """By the package itself."""

    kind: str = "nf4"
    nested: bool = False

    @property
    def config(self) -> dict[str, Any]:
        if self.kind == "int8":
            return {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}
        return {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": self.kind,
                "bnb_4bit_use_double_quant": self.nested}  # fmt: skip

    def write(self, weight: Tensor) -> Written:
        if self.kind == "int8":
            stored, largest, _ = functional.int8_vectorwise_quant(weight.half())
            again = functional.int8_vectorwise_dequant(stored, largest)
            return {".weight": stored, ".SCB": largest, ".weight_format": torch.tensor(0, dtype=torch.uint8)}, again
        stored, state = functional.quantize_4bit(weight, blocksize=64, quant_type=self.kind, compress_statistics=self.nested)
        parts = {f".weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
        return {".weight": stored, **parts}, functional.dequantize_4bit(stored, state)
