"""From the outcomes of a load to its figures, under vLLM's names, and to the table that users read."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minivllm.entrypoints.cli.bench.load import Outcome

LATENCIES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
GOODPUT_METRICS = ("ttft", "tpot", "e2el")
_WIDTH = 50


def percentile(values: Sequence[float], percent: float) -> float:
    """Between the two nearest values in proportion, as numpy does."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (place - low)


def latencies_of(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Milliseconds of each kind: one a request, for itl one a gap between two chunks."""
    return {
        "ttft": [1e3 * o.ttft for o in outcomes],
        "tpot": [1e3 * o.tpot for o in outcomes if o.tpot is not None],
        "itl": [1e3 * gap for o in outcomes for gap in o.gaps],
        "e2el": [1e3 * o.latency for o in outcomes],
    }


def summarize(
    outcomes: Sequence[Outcome], duration: float, percentiles: Sequence[float], goodput: Mapping[str, float]
) -> dict[str, Any]:
    """`goodput`: milliseconds that a request may take by each named metric to count as good."""
    done = [o for o in outcomes if o.error is None]
    num_prompt_tokens, num_output_tokens = sum(o.num_prompt_tokens for o in done), sum(o.num_output_tokens for o in done)
    figures: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "total_input_tokens": num_prompt_tokens,
        "total_output_tokens": num_output_tokens,
        "request_throughput": len(done) / duration,
        "request_goodput": sum(_is_good(o, goodput) for o in done) / duration if goodput else None,
        "output_throughput": num_output_tokens / duration,
        "total_token_throughput": (num_prompt_tokens + num_output_tokens) / duration,
        "max_output_tokens_per_s": _peak_rate(done),
        "max_concurrent_requests": _peak_concurrency(done),
        "failures": dict(Counter(o.error for o in outcomes if o.error is not None)),
    }
    for name, values in latencies_of(done).items():
        if values:
            figures[f"mean_{name}_ms"] = statistics.fmean(values)
            figures[f"median_{name}_ms"] = statistics.median(values)
            figures[f"std_{name}_ms"] = statistics.pstdev(values)
            figures |= {f"p{p:g}_{name}_ms": percentile(values, p) for p in percentiles}
            figures[f"max_{name}_ms"] = max(values)
    return figures


def table(
    figures: Mapping[str, Any], metrics: Sequence[str], percentiles: Sequence[float], settings: Mapping[str, float]
) -> Iterator[str]:
    """The lines of vLLM's result table; `settings` are further lines near its head."""
    yield f"{' Serving Benchmark Result ':=^{_WIDTH}}"
    yield _line("Successful requests:", figures["completed"])
    yield _line("Failed requests:", figures["failed"])
    for label, value in settings.items():
        yield _line(label, value)
    yield _line("Benchmark duration (s):", figures["duration"])
    yield _line("Total input tokens:", figures["total_input_tokens"])
    yield _line("Total generated tokens:", figures["total_output_tokens"])
    yield _line("Request throughput (req/s):", figures["request_throughput"])
    if figures["request_goodput"] is not None:
        yield _line("Request goodput (req/s):", figures["request_goodput"])
    yield _line("Output token throughput (tok/s):", figures["output_throughput"])
    yield _line("Peak output token throughput (tok/s):", figures["max_output_tokens_per_s"])
    yield _line("Peak concurrent requests:", figures["max_concurrent_requests"])
    yield _line("Total token throughput (tok/s):", figures["total_token_throughput"])
    for name in metrics:
        if f"mean_{name}_ms" in figures:
            yield f"{LATENCIES[name]:-^{_WIDTH}}"
            yield _line(f"Mean {name.upper()} (ms):", figures[f"mean_{name}_ms"])
            yield _line(f"Median {name.upper()} (ms):", figures[f"median_{name}_ms"])
            for p in percentiles:
                yield _line(f"P{p:g} {name.upper()} (ms):", figures[f"p{p:g}_{name}_ms"])
            if name == "itl":
                yield _line("Longest gap (ms):", figures["max_itl_ms"])
    yield "=" * _WIDTH


def _line(label: str, value: float) -> str:
    return f"{label:<40} {value:<10}" if isinstance(value, int) else f"{label:<40} {value:<10.2f}"


def _is_good(outcome: Outcome, limits: Mapping[str, float]) -> bool:
    values = {"ttft": outcome.ttft, "tpot": outcome.tpot or 0.0, "e2el": outcome.latency}
    return all(1e3 * values[name] <= limit for name, limit in limits.items())


def _peak_rate(outcomes: Sequence[Outcome]) -> float:
    """Most output tokens within one of the seconds since the first request."""
    begin = min((o.start for o in outcomes), default=0.0)
    seconds: Counter[int] = Counter()
    for outcome in outcomes:
        for stamp in outcome.stamps:
            seconds[int(stamp - begin)] += outcome.num_output_tokens / len(outcome.stamps)  # type: ignore[assignment]
    return float(max(seconds.values(), default=0.0))


def _peak_concurrency(outcomes: Sequence[Outcome]) -> int:
    changes = sorted([(o.start, 1) for o in outcomes] + [(o.stamps[-1], -1) for o in outcomes])
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak
