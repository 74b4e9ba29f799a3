"""`KVPool`: the memory of the paged KV cache, one tensor per layer.

layer: [2, num_blocks, num_kv_heads, block_size, head_dim]      0 = keys, 1 = values; int8: see kernels/kv_pages
"""

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from minivllm.errors import ConfigError
from minivllm.kernels import advise_huge_pages
from minivllm.messages.kv_spec import KVSpec
from minivllm.model.attention.backend import AttentionBackend


class KVPool:
    """Never cleared: a block holds whatever was there until its tokens are written, and nothing else of it is read.

    On a CPU the system gives a page its memory at the first write, so an unused cache costs next to nothing.
    """

    def __init__(self, backend: AttentionBackend, own_layers: range, block_size: int, dtype: torch.dtype, device: str):
        """own_layers: those of the model that are computed here."""
        self.backend = backend
        self._num_layers = len(own_layers)
        self._num_before = own_layers.start
        self._block_size = block_size
        self._dtype = dtype
        self._device = device
        self.layers: list[Tensor] = []

    def spec(self, sliding_window: int | None) -> KVSpec:
        per_layer = math.prod(self.backend.kv_shape(1, self._block_size, self._dtype)) * self._dtype.itemsize
        return KVSpec(self._block_size, per_layer * self._num_layers, sliding_window)

    def allocate(self, num_blocks: int) -> None:
        shape = self.backend.kv_shape(num_blocks, self._block_size, self._dtype)
        try:
            memory = torch.empty((self._num_layers, *shape), dtype=self._dtype, device=self._device)
        except RuntimeError as e:
            size = self._num_layers * math.prod(shape) * self._dtype.itemsize / 1024**3
            raise ConfigError(
                f"cannot allocate a KV cache of {num_blocks} blocks ({size:.2f} GiB): set a smaller --kv-cache-memory-bytes.",
                param="kv_cache_memory_bytes",
            ) from e
        advise_huge_pages(memory)
        own = memory.unbind(0)
        self.layers = [own[0]] * self._num_before + list(own)  # by the layers' numbers; nobody asks for those before

    def copy_blocks(self, memory: mmap.mmap, total: int, first: int, block_ids: Sequence[int], into_cache: bool) -> None:
        """Copy these blocks out to memory for `total` of them, from the place of number `first` on, or in from there.

        memory: [own layers, 2, total, …], the rest as in a layer.
        """
        own = [layer.view(torch.uint8).flatten(2) for layer in self.layers[self._num_before :]]
        parts, _, page = own[0].shape
        saved = torch.frombuffer(memory, dtype=torch.uint8).view(len(own), parts, total, page)
        if page % 8 == 0:  # it is copied element by element
            own, saved = [layer.view(torch.int64) for layer in own], saved.view(torch.int64)
        ids = torch.tensor(block_ids, device=self._device)
        for layer, pages in zip(own, saved.narrow(2, first, len(block_ids)), strict=True):
            if into_cache:
                layer.index_copy_(1, ids, pages.to(layer.device))
            else:
                pages.copy_(layer.index_select(1, ids))
