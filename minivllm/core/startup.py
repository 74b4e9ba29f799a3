"""From a config to a core that can serve: workers, weights, KV cache, scheduler, warm-up. The one door to torch."""

import os
from typing import TYPE_CHECKING

from minivllm.config.engine_config import EngineConfig
from minivllm.core.engine_core import EngineCore
from minivllm.core.scheduler.step_costs import StepCosts
from minivllm.errors import ConfigError
from minivllm.executor.base import Executor
from minivllm.executor.uniproc import UniprocExecutor
from minivllm.messages.kv_spec import KVSpec
from minivllm.messages.output import EngineReady
from minivllm.messages.plan import Plan, WorkerPlan
from minivllm.utils.logging import get_logger

if TYPE_CHECKING:
    from minivllm.core.kv_transfer.exchange import Exchange

logger = get_logger(__name__)

_GIB = 1024**3
_TIMED_PROMPTS = (64, 128)  # tokens; how long they take tells of other lengths
_SLOW_SECONDS = 0.045  # a step that takes this long says enough about longer ones
_LONG_SECONDS = 0.5  # too long to do it again


def build_core(config: EngineConfig, progress: bool = False) -> tuple[EngineCore, EngineReady]:
    """A warm core and the facts found on the way. ConfigError, in one line, if the model or its KV cache does not fit."""
    executor = _make_executor(config)
    try:
        executor.call_all("init_device")
        executor.call_all("load_model", progress)
        num_blocks = _count_blocks(config, executor)
        executor.call_all("allocate_kv", num_blocks)
        executor.call_all("warm_up")
        costs, exchange = _measure_costs(config, executor, num_blocks), _make_exchange(config, executor)
        core = EngineCore(config, executor, num_blocks, costs, exchange=exchange)
    except BaseException:
        executor.abandon()
        raise
    block_size = config.cache.block_size
    max_model_len = core.scheduler.max_model_len
    if num_blocks:
        room = num_blocks / -(-max_model_len // block_size)
        form = "KV cache: %d blocks of %d tokens, room for %.1f requests of %d tokens at a time"
        logger.info(form, num_blocks, block_size, room, max_model_len)
    return core, EngineReady(num_blocks, block_size, max_model_len, os.getpid())


def make_plan(config: EngineConfig) -> Plan:
    """What `build_core` would find, without loading the model."""
    executor = _make_executor(config)
    try:
        executor.call_all("init_device")
        plans: list[WorkerPlan] = executor.call_all("plan")
    finally:
        executor.shutdown()
    found = min(plans, key=lambda plan: _room(plan.kv_bytes, plan.kv_spec))
    spec, problem = found.kv_spec, None
    length, num_blocks = config.model.max_model_len, config.cache.num_gpu_blocks_override
    if num_blocks is None and spec.bytes_per_block:
        try:
            num_blocks = _fitting_blocks(config, spec, found.kv_bytes)
        except ConfigError as e:
            num_blocks, problem = max(0, found.kv_bytes) // spec.bytes_per_block, e.message
    if num_blocks:
        length = min(length, num_blocks * config.cache.block_size)
    return Plan(found, config.parallel.pipeline_parallel_size, num_blocks or 0, config.cache.block_size, length, problem)


def _make_executor(config: EngineConfig) -> Executor:
    """Only what a single worker in this process needs is imported before there is a config."""
    match config.parallel.distributed_executor_backend:
        case "mp":
            from minivllm.executor.multiproc import MultiprocExecutor

            return MultiprocExecutor(config)
        case "ray":
            from minivllm.executor.ray import RayExecutor

            return RayExecutor(config)
    return UniprocExecutor(config)


def _make_exchange(config: EngineConfig, executor: Executor) -> "Exchange | None":
    if config.kv_transfer is None:
        return None
    from minivllm.core.kv_transfer.exchange import Exchange

    return Exchange(config, executor.call_all("kv_spec"))


def _count_blocks(config: EngineConfig, executor: Executor) -> int:
    """Blocks that fit every worker; an explicit number wins."""
    if config.cache.num_gpu_blocks_override is not None:
        num_blocks = config.cache.num_gpu_blocks_override
        num_tokens = num_blocks * config.cache.block_size
        if num_tokens < config.model.max_model_len:
            logger.warning("num_gpu_blocks_override lowers the maximum model length to %d tokens", num_tokens)
        return num_blocks
    specs: list[KVSpec] = executor.call_all("kv_spec")
    if specs[0].bytes_per_block == 0:
        return 0
    available, spec = min(zip(executor.call_all("available_kv_bytes"), specs, strict=True), key=lambda found: _room(*found))
    return _fitting_blocks(config, spec, available)


def _room(available: int, spec: KVSpec) -> float:
    """By which workers are compared: the one with room for the fewest blocks decides for all."""
    return available / max(1, spec.bytes_per_block)


def _fitting_blocks(config: EngineConfig, spec: KVSpec, available: int) -> int:
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


def _measure_costs(config: EngineConfig, executor: Executor, num_blocks: int) -> StepCosts | None:
    """What limits a step beside a number of tokens that was given: nothing. Otherwise the time it takes, by a measurement."""
    if not config.scheduler.max_num_batched_tokens_auto:
        return None
    times: list[tuple[int, float]] = []
    for length in _TIMED_PROMPTS:
        if length >= config.model.max_model_len or length > num_blocks * config.cache.block_size:
            break
        seconds: float = max(executor.call_all("time_prefill", length))
        usual = times[-1][1] * length / times[-1][0] if times else _SLOW_SECONDS
        if usual < seconds < _LONG_SECONDS:  # perhaps because something else was running
            seconds = min(seconds, max(executor.call_all("time_prefill", length)))
        times.append((length, seconds))
        if seconds > _SLOW_SECONDS:
            break
    if not times:
        return None
    measured = ", ".join(f"{length} tokens take {1e3 * seconds:.0f} ms" for length, seconds in times)
    logger.info("Steps are limited by their time (%s); --max-num-batched-tokens sets a number of tokens instead", measured)
    return StepCosts.from_prompts(times)


def _advice(config: EngineConfig, fitting: int) -> str:
    if config.cache.kv_cache_memory_bytes is not None:
        more = "raise --kv-cache-memory-bytes"
    else:
        more = "raise --gpu-memory-utilization, or free memory"
    return f"Set --max-model-len to {fitting} or less, or {more}." if fitting else f"{more[0].upper()}{more[1:]}."


def _gib(num_bytes: int) -> str:
    return f"{max(0, num_bytes) / _GIB:.2f}"
