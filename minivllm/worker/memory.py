"""How many bytes the KV cache may take."""

from minivllm.config.sections.cache import CacheConfig
from minivllm.worker.devices.base import Device


def available_kv_bytes(cache: CacheConfig, device: Device) -> int:
    """After the weights are loaded: the user's figure, or a share of the device, or what the device gives by default.

    A share counts everything that is in use already, by us or by others, against the KV cache.
    """
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes
    memory = device.memory()
    if cache.gpu_memory_utilization is None:
        return device.default_kv_share(memory)
    used = memory.total - memory.free
    return max(0, int(memory.total * cache.gpu_memory_utilization) - used)
