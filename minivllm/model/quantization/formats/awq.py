"""AWQ (Lin et al. 2023): 4 bits, packed along rows; tensors stand transposed."""

import torch
from torch import Tensor

from minivllm.model.quantization.formats.format import Format, Parts
from minivllm.model.quantization.formats.groups import Grid, Groups, unpack

_PLACES = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # in a word of the numbers that come first, second, ...


class AWQ(Format):
    ends = (".qweight", ".qzeros", ".scales")
    marks = (".qweight",)

    def grid(self, parts: Parts) -> Grid:
        (columns, words), groups = parts.shape(".qweight"), parts.shape(".scales")[0]
        parts.expect(".scales", (groups, words * 8))
        parts.expect(".qzeros", (groups, words))
        return Grid(words * 8, columns, parts.groups(".scales", columns, groups))

    def groups(self, parts: Parts, grid: Grid) -> Groups:
        zeros = _unpacked(parts.read(".qzeros")).float()
        return Groups(grid, _unpacked(parts.read(".qweight")), parts.read(".scales").t().float(), zeros)


def _unpacked(words: Tensor) -> Tensor:
    """int32 [n, rows / 8] → uint8 [rows, n]"""
    return unpack(words, 4).unflatten(1, (-1, 8))[..., _PLACES].flatten(1).t().contiguous()
