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


class RequestState(msgspec.Struct, array_like=True):
    """Where one sequence stands in the scheduler."""

    request_id: str
    running: bool
    waits_for: str | None  # what keeps a waiting one out: "slot", "kv_cache", "step_tokens", "grammar" or "kv_transfer"
    num_tokens: int  # prompt and output so far
    num_computed_tokens: int
    num_cached_tokens: int  # of the prompt, found in the prefix cache at first admission
    num_preemptions: int
    scheduled_time: float  # time.monotonic() of the first step it was in; 0 before
