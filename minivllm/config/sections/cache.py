"""The KV cache. Part of `EngineConfig`."""

from dataclasses import dataclass
from typing import Any

from minivllm.config.option import option


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """KV cache"""

    block_size: int = option(16, "Tokens in a block of the KV cache: a power of two, 1 to 256.", low=1, high=256)
    enable_prefix_caching: bool = option(True, "Keep the KV cache of finished prompts for prompts that begin alike.")
    kv_cache_memory_bytes: int | None = option(
        None, "Size of the KV cache (4GiB, 500MB). Default: see --gpu-memory-utilization.", low=1, metavar="BYTES"
    )
    gpu_memory_utilization: float | None = option(
        None,
        "Share of the device's memory to use in all; what is in use already counts, weights included. "
        "Default: 0.9 of a GPU; on a CPU the KV cache gets half of what is free, 4 GiB at most.",
        above=0,
        high=1,
    )
    num_gpu_blocks_override: int | None = option(
        None, "Number of blocks in the KV cache, whatever the memory.", low=1, metavar="N"
    )
    kv_cache_dtype: str = option(
        "auto",
        "Number type in the KV cache; auto: --dtype. int8 keeps a scale for every token and KV head, on a CPU. fp8 (e4m3) "
        "takes the checkpoint's scales, if it has any, and GPUs from compute capability 8.9 on.",
        choices=("auto", "float32", "bfloat16", "float16", "int8", "fp8"),
        aliases={"float": "float32", "half": "float16", "fp8_e4m3": "fp8"},
    )  # fmt: skip
    kv_transfer_config: dict[str, Any] = option(
        {}, "Hand the KV cache of prompts to another engine, or take it from one: see docs/parallel.md."
    )
