"""Figures that the core sends with its outputs, for `metrics.recorder` and the log line."""

import msgspec


class SchedulerStats(msgspec.Struct, array_like=True):
    """Gauges are values now; counters are totals since the core's start."""

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0  # share of blocks that requests hold, 0 to 1
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # of these, found
    num_preemptions: int = 0
    num_steps: int = 0
    num_batched_tokens: int = 0  # over all steps
