"""From a config to a core that can serve: workers, weights, KV cache, scheduler, warm-up. The one door to torch."""

import math
import os

from minivllm.config.engine_config import EngineConfig
from minivllm.core.engine_core import EngineCore
from minivllm.errors import ConfigError
from minivllm.executor.base import Executor
from minivllm.executor.uniproc import UniprocExecutor
from minivllm.messages.kv_spec import KVSpec
from minivllm.messages.output import EngineReady
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

_GIB = 1024**3
_STEP_SECONDS = 0.08  # of a step of nothing but one prompt: 0.1 s with the decoding requests beside it, and far into a prompt
_MIN_STEP_TOKENS = 128
_STEP_TOKENS_MULTIPLE = 64  # rows of the kernels' larger tiles


def build_core(config: EngineConfig, progress: bool = False) -> tuple[EngineCore, EngineReady]:
    """A warm core and the facts found on the way. ConfigError, in one line, if the model or its KV cache does not fit."""
    executor = UniprocExecutor(config)
    try:
        executor.call_all("init_device")
        executor.call_all("load_model", progress)
        num_blocks = _count_blocks(config, executor)
        executor.call_all("allocate_kv", num_blocks)
        executor.call_all("warm_up")
        core = EngineCore(config, executor, num_blocks, _count_step_tokens(config, executor))
    except BaseException:
        executor.shutdown()
        raise
    block_size = config.cache.block_size
    max_model_len = core.scheduler.max_model_len
    logger.info(
        "KV cache: %d blocks of %d tokens, room for %.1f requests of %d tokens at a time",
        num_blocks,
        block_size,
        num_blocks / -(-max_model_len // block_size),
        max_model_len,
    )
    return core, EngineReady(num_blocks, block_size, max_model_len, os.getpid())


def _count_blocks(config: EngineConfig, executor: Executor) -> int:
    """Blocks that fit every worker; an explicit number wins."""
    if config.cache.num_gpu_blocks_override is not None:
        num_blocks = config.cache.num_gpu_blocks_override
        num_tokens = num_blocks * config.cache.block_size
        if num_tokens < config.model.max_model_len:
            logger.warning("num_gpu_blocks_override lowers the maximum model length to %d tokens", num_tokens)
        return num_blocks
    spec: KVSpec = executor.call_all("kv_spec")[0]
    available: int = min(executor.call_all("available_kv_bytes"))
    num_blocks = max(0, available) // spec.bytes_per_block
    max_model_len = config.model.max_model_len
    fitting = num_blocks * spec.block_size
    if fitting >= max_model_len:
        return num_blocks
    if config.model.max_model_len_auto and num_blocks > 0:
        logger.warning("maximum model length lowered from %d to the %d tokens that the KV cache holds", max_model_len, fitting)
        return num_blocks
    needed = -(-max_model_len // spec.block_size) * spec.bytes_per_block
    raise ConfigError(
        f"To serve one request of max_model_len={max_model_len} tokens, {_gib(needed)} GiB of KV cache are needed, but "
        f"{_gib(available)} GiB are available. {_advice(config, fitting)}",
        param="max_model_len",
        value=max_model_len,
    )


def _count_step_tokens(config: EngineConfig, executor: Executor) -> int:
    """Tokens in a step: as given, or so few that running streams need not wait long for a step with a long prompt in it."""
    scheduler = config.scheduler
    if not scheduler.max_num_batched_tokens_auto:
        return scheduler.max_num_batched_tokens
    times: list[tuple[int, float]] = executor.call_all("time_prefills")[0]  # workers go in step: one speaks for all
    fitting = min(_tokens_within(_STEP_SECONDS, times), scheduler.max_num_batched_tokens)
    lowest = -(-max(_MIN_STEP_TOKENS, scheduler.max_num_seqs) // _STEP_TOKENS_MULTIPLE) * _STEP_TOKENS_MULTIPLE
    num_tokens = max(int(fitting) // _STEP_TOKENS_MULTIPLE * _STEP_TOKENS_MULTIPLE, lowest)
    measured = ", ".join(f"{length} take {1e3 * seconds:.0f} ms" for length, seconds in times) or "too few to measure"
    logger.info("Steps of at most %d tokens (%s); --max-num-batched-tokens sets another number", num_tokens, measured)
    return num_tokens


def _tokens_within(seconds: float, times: list[tuple[int, float]]) -> float:
    """Length of the prompt that takes `seconds`, on the line through the last two measurements."""
    if not times:
        return math.inf
    (length, elapsed), (shorter, less) = times[-1], times[-2] if len(times) > 1 else (0, 0.0)
    # Only a part of a step's time is the same for any length: a line flatter than that comes from a disturbed measurement.
    slope = max((elapsed - less) / (length - shorter), elapsed / length / 2)
    return length + (seconds - elapsed) / slope


def _advice(config: EngineConfig, fitting: int) -> str:
    if config.cache.kv_cache_memory_bytes is not None:
        more = "raise --kv-cache-memory-bytes"
    else:
        more = "raise --gpu-memory-utilization, or free memory"
    return f"Set --max-model-len to {fitting} or less, or {more}." if fitting else f"{more[0].upper()}{more[1:]}."


def _gib(num_bytes: int) -> str:
    return f"{max(0, num_bytes) / _GIB:.2f}"
