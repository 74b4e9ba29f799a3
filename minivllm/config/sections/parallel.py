"""How many workers share a model, and how they run. Part of `EngineConfig`."""

from dataclasses import dataclass

from minivllm.config.option import option


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Parallelism"""

    data_parallel_size: int = option(1, "Engine cores with a whole model each, behind one API.", low=1, short="-dp")

    data_parallel_rank: int = 0  # which of the cores this is
