"""`LogLine`: throughput and load of the last seconds in one line, as vLLM writes it. Asked by the async engine."""

from minivllm.metrics.recorder import Recorder

LOG_INTERVAL = 10.0  # seconds


class LogLine:
    """`text(now)` is the line for the time since the last call, or None if nothing happened and nothing runs."""

    def __init__(self, recorder: Recorder, now: float):
        self._recorder = recorder
        self._time = now
        self._totals = self._read()

    def restart(self, now: float) -> None:
        """The time before `now` shall not count: nothing ran."""
        self._time, self._totals = now, self._read()

    def text(self, now: float) -> str | None:
        seconds = max(now - self._time, 1e-6)
        totals = self._read()
        prompt, generated, queries, hits = (new - old for new, old in zip(totals, self._totals, strict=True))
        self._time, self._totals = now, totals
        stats = self._recorder.stats
        if not (prompt or generated or stats.num_running or stats.num_waiting):
            return None
        return (
            f"Engine {self._recorder.engine:03}: Avg prompt throughput: {prompt / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {generated / seconds:.1f} tokens/s, "
            f"Running: {stats.num_running} reqs, Waiting: {stats.num_waiting} reqs, "
            f"KV cache usage: {stats.kv_cache_usage:.1%}, "
            f"Prefix cache hit rate: {hits / queries if queries else 0:.1%}"
        )

    def _read(self) -> tuple[float, float, float, float]:
        total = self._recorder.total
        return total("prompt_tokens"), total("generation_tokens"), total("prefix_cache_queries"), total("prefix_cache_hits")
