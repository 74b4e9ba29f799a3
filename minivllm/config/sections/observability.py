"""What is logged. Part of `EngineConfig`."""

from dataclasses import dataclass

from minivllm.config.option import option


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservabilityConfig:
    """Logging"""

    disable_log_stats: bool = option(False, "No line of throughput and queue figures every ten seconds.")
    disable_log_requests: bool = option(False, "No line for each request.")
