"""MXFP4 of the OCP, as gpt-oss has its experts: 4-bit floats and a power of two for every 32 of them, all experts together."""

import torch
from torch import Tensor

from minivllm.model.quantization.formats.format import Format, Parts
from minivllm.model.quantization.formats.groups import Grid, Groups, halves

_BIAS = 127


class MXFP4(Format):
    ends = ("_blocks", "_scales")
    marks = ("_blocks",)
    weight = ""

    def grid(self, parts: Parts) -> Grid:
        experts, rows, groups, size = parts.shape("_blocks")
        parts.expect("_scales", (experts, rows, groups))
        return Grid(experts * rows, groups * size * 2, size * 2, 4, "e2m1")

    def groups(self, parts: Parts, grid: Grid) -> Groups:
        powers = parts.read("_scales").flatten(0, 1).int() - _BIAS
        codes = halves(parts.read("_blocks")).view(grid.rows, grid.columns)
        return Groups(grid, codes, torch.ldexp(torch.ones(powers.shape), powers))

    def shape(self, parts: Parts, rows: int, columns: int) -> tuple[int, ...]:
        experts = parts.shape("_blocks")[0]
        return experts, columns, rows // experts

    def arrange(self, parts: Parts, tensor: Tensor) -> Tensor:
        return tensor.reshape(parts.shape("_blocks")[0], -1, tensor.shape[1]).transpose(1, 2)
