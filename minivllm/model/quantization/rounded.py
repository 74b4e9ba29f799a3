"""Weights of 4 or 8 bits in groups, found while an ordinary checkpoint is read."""

from abc import abstractmethod

import torch
from torch import Tensor

from minivllm.kernels.codes import CODES, E4M3_UNIT
from minivllm.kernels.reference.gemm_fp8 import TOP
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.grouped import GROUP, Form, Packed, pack_values

_BAND = 1 << 22  # weights rounded at once


class Rounded(Packed):
    form: Form

    def create_weights(self, layer: Matrix) -> None:
        of_scale_and_least = 32 / GROUP
        layer.weight = layer.declare(
            layer.rows, layer.columns, dtype=layer.dtype, kept_bits=self.form.bits + of_scale_and_least
        )

    def finish_loading(self, layer: Matrix) -> None:
        bands = [self._pack(band.float()) for band in layer.weight.split(max(1, _BAND // layer.shape[1]))]
        values, scales, least = (torch.cat(found) for found in zip(*bands, strict=True))
        self.pack(layer, values, scales, least, self.form)

    def _pack(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, scales, least = self.round(weight)
        groups = weight.shape[1] // GROUP
        scales, least = (numbers.repeat_interleave(groups // numbers.shape[1], dim=1) for numbers in (scales, least))
        return pack_values(values, self.form), scales, least

    @abstractmethod
    def round(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """fp32 [rows, columns] → values, uint8 alike; scales and least, float16 [rows, groups]."""


class Int4(Rounded):
    """Between the least and the largest weight of a group of 32 in 15 equal steps."""

    form = Form(4, GROUP)

    def round(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        groups = weight.unflatten(1, (-1, GROUP))
        least, most = groups.amin(-1).half(), groups.amax(-1)
        scales = ((most - least) / 15).half()
        steps = (groups - least[..., None]) / scales.float().clamp(min=1e-20)[..., None]
        return steps.round().clamp(0, 15).to(torch.uint8).flatten(1), scales, least


class Float8Rows(Rounded):
    """FP8 (e4m3) with a scale for each row."""

    form = Form(8, GROUP, "e4m3")

    def round(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scales = (weight.abs().amax(1, keepdim=True) / (TOP * E4M3_UNIT)).half()
        steps = (weight / (scales.float() * E4M3_UNIT).clamp(min=1e-20)).clamp(-TOP, TOP)
        return steps.to(torch.float8_e4m3fn).view(torch.uint8), scales, torch.zeros_like(scales)


class NormalFloat4(Rounded):
    """NF4 of bitsandbytes, in blocks of 64 (of 32 where a row does not divide into those)."""

    form = Form(4, GROUP, "nf4")

    def round(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        blocks = weight.unflatten(1, (-1, 64 if weight.shape[1] % 64 == 0 else 32))
        scales = blocks.abs().amax(-1).half()
        table = CODES["nf4"]
        middles = ((table[1:] + table[:-1]) / 2).to(weight.device)
        values = torch.bucketize(blocks / scales.float().clamp(min=1e-20)[..., None], middles)
        return values.to(torch.uint8).flatten(1), scales, torch.zeros_like(scales)
