"""Small random weights for any shapes: to measure speed without a checkpoint."""

import math
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from minivllm.model.loading.source import TensorSource


class DummySource(TensorSource):
    """Uniform values of about the size that training leaves; the same at each start with the same seed, in any order."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, seed: int, device: str):
        self._shapes = shapes
        self._dtype = dtype
        self._seed = seed
        self._generator = torch.Generator(device)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor:
        bound = 1.0 / math.sqrt(self._shapes[name][-1])
        self._generator.manual_seed(self._seed + zlib.crc32(name.encode()))
        made = torch.empty(self._shapes[name], dtype=self._dtype, device=self._generator.device)
        return made.uniform_(-bound, bound, generator=self._generator)

    def release(self, name: str) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""
