"""A CUDA GPU: its memory, pinned transfers and captured graphs."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minivllm.config.sections.device import DeviceConfig
from minivllm.errors import ConfigError
from minivllm.worker.devices.base import Captured, Device, Memory
from minivllm.worker.staging import Staging

_DEFAULT_SHARE = 0.9  # of the device's memory; the rest is for graphs, cuBLAS and whoever else draws on the screen
_FP8_CAPABILITY = (8, 9)
_LENGTHS = tuple(1 << n for n in range(12))  # of prompts for which different kernels are compiled; long ones, for many experts


class CudaDevice(Device):
    torch_name = "cuda"
    overlaps = True
    warm_up_lengths = _LENGTHS

    def __init__(self, config: DeviceConfig, index: int = 0, count: int = 1):
        self.captures = importlib.util.find_spec("triton") is not None  # what computes in its place waits for numbers
        self._index = index
        self._count = count
        self._pool: Any = None  # memory that all graphs share
        self._stream: Any = None  # on which they are captured: one for all, since cuBLAS keeps memory for each stream it sees
        self._staging = Staging(lambda size: torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True), _send)

    def set_up(self) -> None:
        if not torch.cuda.is_available():
            raise ConfigError("--device cuda: torch finds no CUDA GPU here that it can use.", param="device")
        if torch.cuda.device_count() < self._count:
            raise ConfigError(
                f"{self._count} workers need a GPU each, and torch finds {torch.cuda.device_count()} here: lower "
                "--tensor-parallel-size, --pipeline-parallel-size or --data-parallel-size.",
                param="tensor_parallel_size",
            )
        torch.cuda.init()
        torch.cuda.set_device(self._index)

    def memory(self) -> Memory:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return Memory(total=total, free=free)

    def default_kv_share(self, memory: Memory) -> int:
        return max(0, int(memory.total * _DEFAULT_SHARE) - (memory.total - memory.free))

    def peak_bytes(self, run: Callable[[], None]) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def fp8_refusal(self) -> str | None:
        major, minor = torch.cuda.get_device_capability()
        return None if (major, minor) >= _FP8_CAPABILITY else f"this GPU has compute capability {major}.{minor}, 8.9 is needed"

    def send(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        return self._staging.send(arrays)

    def fetch(self, tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        copies = [torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=True) for t in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record()

        def wait() -> list[Tensor]:
            event.synchronize()
            return copies

        return wait

    def capture(self, function: Callable[[], Tensor]) -> Captured:
        """Run once, which compiles what there is to compile, then record. What other threads do meanwhile does not matter."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            function()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            result = function()
        self._pool = graph.pool()
        return Captured(graph.replay, result)


def _send(host: Tensor) -> tuple[Tensor, Callable[[], None]]:
    device = host.to("cuda", non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return device, event.synchronize
