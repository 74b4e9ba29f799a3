"""`Metrics`: what happened in the engine → Prometheus metrics. Fed by the engine once a step, read by /metrics and `LLM`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from minivllm.messages.output import RequestMetrics
from minivllm.messages.stats import SchedulerStats
from minivllm.metrics.definitions import Definition, definitions
from minivllm.metrics.families import HistogramFamily, Metric, ValueFamily
from minivllm.utils.board import Board

COLUMNS = 1024  # of a board that one core's figures fit in


@dataclass(slots=True)
class FinishedRequest:
    """A sequence that has ended, for the metrics of whole requests."""

    reason: str
    num_prompt_tokens: int
    num_generation_tokens: int
    n: int
    max_tokens: int | None
    times: RequestMetrics


@dataclass(slots=True)
class StepRecord:
    """What one batch of outputs brought. Times in seconds."""

    num_prompt_tokens: int = 0  # of the requests that got their first token
    num_cached_tokens: int = 0  # of these, from the prefix cache
    num_generation_tokens: int = 0
    first_token_seconds: list[float] = field(default_factory=list)
    token_seconds: list[float] = field(default_factory=list)
    finished: list[FinishedRequest] = field(default_factory=list)


class Metrics:
    """The recorders of all engine cores; as text, the cores' figures stand side by side.

    What they say is of all API processes: each records its own requests, and the first one the cores' figures.
    """

    def __init__(self, model_name: str, max_model_len: int, num_engines: int = 1, board: Board | None = None):
        board = board or Board(num_engines * COLUMNS)
        self._alone = board.num_rows == 1
        self.recorders = [Recorder(model_name, max_model_len, board, engine) for engine in range(num_engines)]

    @property
    def num_waiting(self) -> int:
        """Sequences that waited by the cores' last figures."""
        return int(self.total("num_requests_waiting"))

    def set_idle(self) -> None:
        """This process has no requests left. If others have, the cores' next figures will say so."""
        if self._alone:
            for recorder in self.recorders:
                recorder.set_idle()

    def total(self, name: str) -> float:
        """A counter's or gauge's value, summed over its label and the cores."""
        return sum(recorder.total(name) for recorder in self.recorders)

    def render(self) -> bytes:
        """Prometheus text format 0.0.4."""
        lines: list[str] = []
        for of_all in zip(*(recorder.families() for recorder in self.recorders), strict=True):
            lines += of_all[0].head()
            for family in of_all:
                lines += family.samples()
        return ("\n".join(lines) + "\n").encode()

    def snapshot(self) -> list[Metric]:
        return [metric for recorder in self.recorders for family in recorder.families() for metric in family.snapshot()]


class Recorder:
    """The figures of one engine core."""

    def __init__(self, model_name: str, max_model_len: int, board: Board, engine: int):
        self.engine = engine
        self._board = board
        self._labels = {"model_name": model_name, "engine": str(engine)}
        self._values: dict[str, ValueFamily] = {}
        self._histograms: dict[str, HistogramFamily] = {}
        for each in definitions(max_model_len):
            if each.kind == "histogram":
                self._histograms[each.name] = HistogramFamily(each, self._labels, board)
            else:
                self._values[each.name] = ValueFamily(each, self._labels, board)
        self.stats = SchedulerStats()

    def record_step(self, record: StepRecord, stats: SchedulerStats | None) -> None:
        values, histograms = self._values, self._histograms
        values["prompt_tokens"].add(record.num_prompt_tokens)
        values["prompt_tokens_cached"].add(record.num_cached_tokens)
        values["generation_tokens"].add(record.num_generation_tokens)
        histograms["time_to_first_token_seconds"].observe_all(record.first_token_seconds)
        histograms["inter_token_latency_seconds"].observe_all(record.token_seconds)
        for finished in record.finished:
            self._record_finished(finished)
        if stats is not None:
            self._record_stats(stats)

    def record_finished(self, finished: FinishedRequest) -> None:
        """A request that ended outside of a step: aborted."""
        self._record_finished(finished)

    def record_rejection(self, reason: str, count: int) -> None:
        self._values["admission_rejections"].add(count, reason)

    def set_idle(self) -> None:
        """Nothing is left in the engine. The core sends no figures when a last request is aborted, so they are set here."""
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            self._values[name].set(0)
        self.stats.num_running = self.stats.num_waiting = 0
        self.stats.kv_cache_usage = 0.0

    def set_info(self, facts: Mapping[str, object]) -> None:
        """Publish `cache_config_info`: constant facts as labels of a gauge that is always 1."""
        labels = self._labels | {name: str(value) for name, value in facts.items()}
        definition = Definition("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig.")
        info = ValueFamily(definition, labels, self._board)
        info.set(float(self._board.own == 0))
        self._values["cache_config_info"] = info

    def total(self, name: str) -> float:
        """A counter's or gauge's value, summed over its label."""
        return sum(self._values[name].values.values())

    def families(self) -> list[ValueFamily | HistogramFamily]:
        return [*self._values.values(), *self._histograms.values()]

    def _record_stats(self, stats: SchedulerStats) -> None:
        values = self._values
        values["num_requests_running"].set(stats.num_running)
        values["num_requests_waiting"].set(stats.num_waiting)
        values["kv_cache_usage_perc"].set(stats.kv_cache_usage)
        values["prefix_cache_queries"].set(stats.prefix_cache_queries)
        values["prefix_cache_hits"].set(stats.prefix_cache_hits)
        values["num_preemptions"].set(stats.num_preemptions)
        num_steps = stats.num_steps - self.stats.num_steps
        if num_steps > 0:
            mean = (stats.num_batched_tokens - self.stats.num_batched_tokens) / num_steps
            for _ in range(num_steps):
                self._histograms["iteration_tokens_total"].observe(mean)
        self.stats = stats

    def _record_finished(self, finished: FinishedRequest) -> None:
        self._values["request_success"].add(1, finished.reason)
        times, histograms = finished.times, self._histograms
        histograms["request_prompt_tokens"].observe(finished.num_prompt_tokens)
        histograms["request_generation_tokens"].observe(finished.num_generation_tokens)
        histograms["request_params_n"].observe(finished.n)
        if finished.max_tokens is not None:
            histograms["request_params_max_tokens"].observe(finished.max_tokens)
        if times.finished_time is not None:
            histograms["e2e_request_latency_seconds"].observe(times.finished_time - times.arrival_time)
        scheduled, first, last = times.first_scheduled_time, times.first_token_time, times.last_token_time
        if scheduled is None or first is None or last is None:
            return
        histograms["request_queue_time_seconds"].observe(scheduled - times.arrival_time)
        histograms["request_prefill_time_seconds"].observe(first - scheduled)
        histograms["request_decode_time_seconds"].observe(last - first)
        histograms["request_inference_time_seconds"].observe(last - scheduled)
        if finished.num_generation_tokens > 1:
            per_token = (last - first) / (finished.num_generation_tokens - 1)
            histograms["request_time_per_output_token_seconds"].observe(per_token)
