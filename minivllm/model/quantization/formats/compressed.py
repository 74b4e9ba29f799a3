"""compressed-tensors, of llm-compressor, with integers: packed (W4A16, W8A16) or as they are (W8A8).

Where a checkpoint says how activations are to be rounded, ours keep 16 bits: no less exact.
"""

import torch
from torch import Tensor

from minivllm.model.quantization.formats.format import Format, Parts, group_index
from minivllm.model.quantization.formats.groups import Grid, Groups, row_groups, unpack


class PackedIntegers(Format):
    ends = (".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx")
    marks = (".weight_packed",)
    unused = (*Format.unused, ".weight_shape")

    def grid(self, parts: Parts) -> Grid:
        bits, (rows, words), groups = self._stored.bits, parts.shape(".weight_packed"), parts.shape(".weight_scale")[-1]
        columns = words * 32 // bits
        parts.expect(".weight_scale", (rows, groups))
        if ".weight_zero_point" in parts:
            parts.expect(".weight_zero_point", (rows * bits // 32, groups))
        if ".weight_g_idx" in parts:
            parts.expect(".weight_g_idx", (columns,))
        size = parts.groups(".weight_scale", columns, groups)
        return Grid(rows, columns, size, bits, index=group_index(parts, ".weight_g_idx", size, groups))

    def groups(self, parts: Parts, grid: Grid) -> Groups:
        zeros: Tensor | float = float(1 << grid.bits - 1)
        if ".weight_zero_point" in parts:
            zeros = unpack(parts.read(".weight_zero_point").t(), grid.bits).t().float()
        return Groups(grid, unpack(parts.read(".weight_packed"), grid.bits), parts.read(".weight_scale").float(), zeros)


class Integers(Format):
    ends = (".weight", ".weight_scale", ".weight_zero_point")
    marks = (".weight_scale",)

    def grid(self, parts: Parts) -> Grid:
        (rows, columns), found = parts.shape(".weight"), parts.shape(".weight_scale")
        groups = found[1] if len(found) == 2 else 1
        parts.expect(".weight_scale", (), (1,), (rows,), (rows, groups))
        if ".weight_zero_point" in parts:
            parts.expect(".weight_zero_point", found)
        return Grid(rows, columns, parts.groups(".weight_scale", columns, groups), 8)

    def groups(self, parts: Parts, grid: Grid) -> Groups:
        zeros: Tensor | float = 128.0
        if ".weight_zero_point" in parts:
            zeros = row_groups(parts.read(".weight_zero_point"), grid) + 128
        return Groups(grid, unsigned(parts.read(".weight")), row_groups(parts.read(".weight_scale"), grid), zeros)


def unsigned(weight: Tensor) -> Tensor:
    """int8 → uint8, 128 larger"""
    return weight.view(torch.uint8) ^ 128
