"""A folder with files for each tensor-parallel rank, which have its share of each parameter: vLLM's `sharded_state`."""

from pathlib import Path

from minivllm.config.engine_config import EngineConfig
from minivllm.errors import ConfigError

PATTERN = "model-rank-{rank}-part-{part}.safetensors"
ANY = PATTERN.format(rank="*", part="*")


def is_sharded(folder: Path) -> bool:
    return any(folder.glob(ANY))


def check_ranks(folder: Path, tensor_parallel_size: int, pipeline_parallel_size: int) -> None:
    """ConfigError unless there are files for exactly these ranks."""
    ranks = {int(rank) for path in folder.glob(ANY) if (rank := path.name.split("-")[2]).isdigit()}
    saved = max(ranks, default=-1) + 1
    absent = [PATTERN.format(rank=rank, part="*") for rank in range(saved) if rank not in ranks]
    if absent:
        raise ConfigError(f"{folder} lacks {', '.join(absent)}.", param="model")
    if saved != tensor_parallel_size or pipeline_parallel_size > 1:
        raise ConfigError(
            f"{folder} was saved by {saved} tensor-parallel workers in one stage: it can only be read by as many "
            f"(--tensor-parallel-size {saved}, not {tensor_parallel_size} in {pipeline_parallel_size}).",
            param="tensor_parallel_size",
        )


def check_target(config: EngineConfig, target: Path) -> None:
    """ConfigError if this engine cannot write such a folder there."""
    parallel = config.parallel
    if parallel.pipeline_parallel_size > 1 or parallel.data_parallel_size > 1 or parallel.nnodes > 1:
        raise ConfigError("save_sharded_state needs an engine with one pipeline stage, one replica and one node.", param="path")
    if config.stored is not None or config.load.load_format == "gguf":
        raise ConfigError(f"{config.model.model} is quantized: only plain weights can be saved in shares.", param="path")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{target} is there and not an empty folder.", param="path")
