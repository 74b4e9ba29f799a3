"""What one step may hold, and who comes first. Part of `EngineConfig`."""

from dataclasses import dataclass

from minivllm.config.option import AUTO, option


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Scheduler"""

    max_num_seqs: int = option(AUTO, "Most requests that run at a time. Default: 128, on a GPU 256.", low=1, auto=True)
    max_num_batched_tokens: int = option(
        AUTO,
        "Most tokens in one step (8k). Default: 2048, on a GPU 8192, or more where another option needs it, and so few that a "
        "step takes about 0.1 s while streams are running, 0.25 s while none are.",
        low=1,
        auto=True,
    )
    scheduling_policy: str = option(
        "fcfs", "fcfs: in order of arrival; priority: by the request's priority, lower first.", choices=("fcfs", "priority")
    )
    enable_chunked_prefill: bool = option(True, "Compute long prompts in chunks, beside the running requests.")
    long_prefill_token_threshold: int = option(
        0, "Most tokens of one prompt in one step, so that a long one leaves room for others; 0: no such limit.", low=0
    )
    max_num_queued_reqs: int | None = option(
        None, "Requests that may wait before new ones get status 503; 0: no limit. Default: 4096 in the server.", low=0
    )

    max_num_batched_tokens_auto: bool = False  # not given: steps are limited by their time, too
