"""Where it runs. Part of `EngineConfig`."""

from dataclasses import dataclass

from minivllm.config.option import AUTO, option


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceConfig:
    """Device"""

    device: str = option(
        "auto",
        "auto: the CUDA GPU if there is one that torch can use, else the CPU.",
        choices=("auto", "cpu", "cuda"),
    )
    cpu_threads: int = option(
        AUTO,
        "Threads that compute, in each worker. Default: MINIVLLM_CPU_THREADS, else the physical cores this process may use, "
        "divided among the workers.",
        low=1,
        auto=True,
    )
