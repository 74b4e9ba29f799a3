"""Preemption by recompute: a request gives up slot and blocks, keeps its tokens, and starts again from the waiting queue."""

from minivllm.core.kv_cache.manager import KVCacheManager
from minivllm.core.scheduler.request import Request, Status


def choose_victim(running: list[Request]) -> Request:
    """The last of the running, which are sorted by their order: lowest priority, latest arrival."""
    return running[-1]


def reset(request: Request, kv_cache: KVCacheManager) -> None:
    """Take everything but the tokens. Results still in flight for it become void. The caller takes its slot back."""
    kv_cache.free(request.blocks)
    request.status = Status.WAITING
    request.slot = -1
    request.num_computed = 0
    request.num_pending = 0
    request.epoch += 1
    request.num_preemptions += 1
