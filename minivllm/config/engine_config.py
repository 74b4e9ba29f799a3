"""`EngineConfig`: all that the engine, the core and the worker know of options and model. Made by `config.resolve`."""

from dataclasses import dataclass

from minivllm.config.model_spec import ModelSpec
from minivllm.config.quantization import StoredWeights
from minivllm.config.sections.cache import CacheConfig
from minivllm.config.sections.device import DeviceConfig
from minivllm.config.sections.generation import GenerationConfig
from minivllm.config.sections.kv_transfer import KVTransferConfig
from minivllm.config.sections.load import LoadConfig
from minivllm.config.sections.model import ModelConfig
from minivllm.config.sections.observability import ObservabilityConfig
from minivllm.config.sections.parallel import ParallelConfig
from minivllm.config.sections.pooling import PoolingConfig
from minivllm.config.sections.scheduler import SchedulerConfig

ENGINE_SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "load": LoadConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "device": DeviceConfig,
    "parallel": ParallelConfig,
    "observability": ObservabilityConfig,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Frozen and complete; crosses to the core process as msgpack. Facts found at run time never enter it."""

    model: ModelConfig
    load: LoadConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    device: DeviceConfig
    observability: ObservabilityConfig
    spec: ModelSpec
    generation: GenerationConfig
    parallel: ParallelConfig = ParallelConfig()
    pooling: PoolingConfig | None = None  # None: the model generates
    kv_transfer: KVTransferConfig | None = None  # None: blocks stay where they are
    stored: StoredWeights | None = None  # None: weights are in the checkpoint as they are
