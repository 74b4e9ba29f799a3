"""FP8 (e4m3) with a scale for the weight, for each row, or for each block. Activations are rounded where the device multiplies
such floats as they are, and by scales of their own.
"""

import torch

from minivllm.kernels.codes import E4M3_UNIT
from minivllm.model.quantization.formats.format import Format, Parts
from minivllm.model.quantization.formats.groups import Grid, Groups, row_groups


class Float8(Format):
    ends = (".weight", ".weight_scale", ".weight_scale_inv")
    marks = (".weight_scale", ".weight_scale_inv")
    unused = (*Format.unused, ".activation_scale")

    def grid(self, parts: Parts) -> Grid:
        (rows, columns), block = parts.shape(".weight"), self._stored.block
        if block is None:
            parts.expect(_scale(parts), (), (1,), (rows,), (rows, 1))
        else:
            parts.expect(_scale(parts), (-(-rows // block[0]), -(-columns // block[1])))
        return Grid(rows, columns, columns if block is None else block[1], 8, "e4m3")

    def groups(self, parts: Parts, grid: Grid) -> Groups:
        scales = row_groups(parts.read(_scale(parts)), grid, self._stored.block[0] if self._stored.block else 0)
        return Groups(grid, parts.read(".weight").view(torch.uint8), scales / E4M3_UNIT)


def _scale(parts: Parts) -> str:
    return ".weight_scale" if ".weight_scale" in parts else ".weight_scale_inv"
