"""GPTQ (Frantar et al. 2022): 4 or 8 bits, packed along columns; tensors stand transposed.

With act-order, columns were quantized in the order of their importance, and g_idx has the group of each.
"""

from minivllm.model.quantization.formats.format import Format, Parts, group_index
from minivllm.model.quantization.formats.groups import Grid, Groups, unpack


class GPTQ(Format):
    ends = (".qweight", ".qzeros", ".scales", ".g_idx")
    marks = (".qweight",)

    def grid(self, parts: Parts) -> Grid:
        bits, (words, rows), groups = self._stored.bits, parts.shape(".qweight"), parts.shape(".scales")[0]
        columns = words * 32 // bits
        parts.expect(".scales", (groups, rows))
        parts.expect(".qzeros", (groups, rows * bits // 32))
        if ".g_idx" in parts:
            parts.expect(".g_idx", (columns,))
        size = parts.groups(".scales", columns, groups)
        return Grid(rows, columns, size, bits, index=group_index(parts, ".g_idx", size, groups))

    def groups(self, parts: Parts, grid: Grid) -> Groups:
        zeros = unpack(parts.read(".qzeros"), grid.bits).t().float()
        if self._stored.form == "gptq":
            zeros = zeros + 1
        return Groups(grid, unpack(parts.read(".qweight").t(), grid.bits), parts.read(".scales").t().float(), zeros)
