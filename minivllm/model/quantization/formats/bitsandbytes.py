"""bitsandbytes (Dettmers et al. 2022, 2023): NF4 and FP4 in blocks along the rows, whose largest values may be in 8 bits
themselves; and int8.
"""

import json
from math import gcd
from typing import Any

import torch

from minivllm.model.quantization.formats.compressed import unsigned
from minivllm.model.quantization.formats.format import Format, Parts
from minivllm.model.quantization.formats.groups import Grid, Groups, halves

_STATES = {kind: f".weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")}


class FourBits(Format):
    ends = (
        ".weight", ".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",
        *_STATES.values(),
    )  # fmt: skip
    marks = (".weight.absmax",)

    def grid(self, parts: Parts) -> Grid:
        state = _state(parts)
        rows, columns = state["shape"]
        parts.expect(".weight", (rows * columns // 2, 1))
        parts.expect(".weight.absmax", (-(-rows * columns // state["blocksize"]),))
        return Grid(rows, columns, gcd(columns, state["blocksize"]), 4, state["quant_type"])

    def groups(self, parts: Parts, grid: Grid) -> Groups:
        state, largest = _state(parts), parts.read(".weight.absmax")
        if ".weight.nested_absmax" in parts:
            scales = parts.read(".weight.nested_absmax").repeat_interleave(state["nested_blocksize"])[: len(largest)]
            largest = parts.read(".weight.nested_quant_map")[largest.int()] * scales + state["nested_offset"]
        block = torch.arange(grid.rows * grid.columns // grid.size) * grid.size // state["blocksize"]
        packed = parts.read(".weight").view(grid.rows, grid.columns // 2)
        return Groups(grid, halves(packed >> 4 | packed << 4), largest.float()[block].view(grid.rows, -1))


class EightBits(Format):
    ends = (".weight", ".SCB")
    marks = (".SCB",)
    unused = (*Format.unused, ".weight_format")

    def grid(self, parts: Parts) -> Grid:
        rows, columns = parts.shape(".weight")
        parts.expect(".SCB", (rows,))
        return Grid(rows, columns, columns, 8)

    def groups(self, parts: Parts, grid: Grid) -> Groups:
        return Groups(grid, unsigned(parts.read(".weight")), parts.read(".SCB").float()[:, None] / 127, 128.0)


def _state(parts: Parts) -> dict[str, Any]:
    end = next((end for end in _STATES.values() if end in parts), _STATES["nf4"])
    found: dict[str, Any] = json.loads(bytes(parts.read(end).tolist()))
    return found
