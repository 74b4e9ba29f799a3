"""How many bytes the KV cache may take."""

from collections.abc import Callable
from dataclasses import replace

from minivllm.config.sections.cache import CacheConfig
from minivllm.worker.devices.base import Device


def available_kv_bytes(
    cache: CacheConfig, device: Device, num_workers: int, largest_step: Callable[[], None], to_load: int = 0
) -> int:
    """After the weights are loaded, but for `to_load` bytes in each worker: the user's figure, or a share of the device, or
    what the device gives by default.

    Where `num_workers`, those of all cores, have one memory, each gets the same part of what is not given as a figure.

    A share counts against the KV cache everything that is in use already, by us or by others, and what a step takes for a
    while; on a device where that counts, the largest one is run.
    """
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes
    passing = device.peak_bytes(largest_step)
    memory = device.memory()
    memory = replace(memory, free=max(0, memory.free - to_load * (num_workers if device.shared else 1)))
    if cache.gpu_memory_utilization is None:
        share = device.default_kv_share(memory)
    else:
        share = int(memory.total * cache.gpu_memory_utilization) - (memory.total - memory.free)
    return max(0, share // num_workers - passing if device.shared else share - passing)
