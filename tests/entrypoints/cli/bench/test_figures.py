"""Figures and table of a load whose times are given, and the times at which requests are due."""

import math
import random
import statistics

import numpy as np
import pytest

from minivllm.entrypoints.cli.bench.figures import percentile, summarize, table
from minivllm.entrypoints.cli.bench.load import Outcome, arrival_times

# Two answers and two failures. 0: first token after 100 ms, then 4 in 50 ms steps. 1: after 300 ms, then one more after 200 ms.
OUTCOMES = [
    Outcome(10.0, [10.1, 10.15, 10.2, 10.25, 10.3], num_prompt_tokens=20, num_output_tokens=5),
    Outcome(10.5, [10.8, 11.0], num_prompt_tokens=30, num_output_tokens=2),
    Outcome(10.5, error="HTTP 503: full"),
    Outcome(10.6, error="HTTP 503: full"),
]


def test_figures() -> None:
    figures = summarize(OUTCOMES, 2.0, [50, 99], {"ttft": 200, "tpot": 60})
    assert figures["failures"] == {"HTTP 503: full": 2}
    exact = {
        "completed": 2,
        "failed": 2,
        "total_input_tokens": 50,
        "total_output_tokens": 7,
        "request_throughput": 1.0,
        "request_goodput": 0.5,
        "output_throughput": 3.5,
        "total_token_throughput": 28.5,
        "max_output_tokens_per_s": 6.0,
        "max_concurrent_requests": 1,
        "mean_ttft_ms": 200.0,
        "median_ttft_ms": 200.0,
        "std_ttft_ms": 100.0,
        "p50_ttft_ms": 200.0,
        "p99_ttft_ms": 298.0,
        "mean_tpot_ms": 125.0,
        "mean_itl_ms": 80.0,
        "median_itl_ms": 50.0,
        "max_itl_ms": 200.0,
        "mean_e2el_ms": 400.0,
        "p99_e2el_ms": 498.0,
    }
    assert {name: figures[name] for name in exact} == pytest.approx(exact)


def test_goodput_counts_requests_within_every_limit() -> None:
    def good(**limits: float) -> float:
        return float(summarize(OUTCOMES, 1.0, [], limits)["request_goodput"])

    assert [good(ttft=301), good(ttft=301, tpot=100), good(ttft=99), good(e2el=501)] == [2, 1, 0, 2]
    assert summarize(OUTCOMES, 1.0, [], {})["request_goodput"] is None


def test_table() -> None:
    figures = summarize(OUTCOMES, 2.0, [99], {"ttft": 200})
    lines = list(table(figures, ["ttft", "itl"], [99], {"Maximum request concurrency:": 4}))
    assert {len(line) for line in lines if line[0] in "=-"} == {50}
    rows = {line[:40].strip(): line[41:].strip() for line in lines if line[0] not in "=-"}
    assert rows == {
        "Successful requests:": "2",
        "Failed requests:": "2",
        "Maximum request concurrency:": "4",
        "Benchmark duration (s):": "2.00",
        "Total input tokens:": "50",
        "Total generated tokens:": "7",
        "Request throughput (req/s):": "1.00",
        "Request goodput (req/s):": "0.50",
        "Output token throughput (tok/s):": "3.50",
        "Peak output token throughput (tok/s):": "6.00",
        "Peak concurrent requests:": "1",
        "Total token throughput (tok/s):": "28.50",
        "Mean TTFT (ms):": "200.00",
        "Median TTFT (ms):": "200.00",
        "P99 TTFT (ms):": "298.00",
        "Mean ITL (ms):": "80.00",
        "Median ITL (ms):": "50.00",
        "P99 ITL (ms):": "194.00",
        "Longest gap (ms):": "200.00",
    }


def test_a_load_that_failed_as_a_whole_has_no_latencies() -> None:
    figures = summarize(OUTCOMES[2:], 2.0, [99], {})
    assert (figures["completed"], figures["max_concurrent_requests"], figures["output_throughput"]) == (0, 0, 0.0)
    assert not any("TTFT" in line for line in table(figures, ["ttft"], [99], {}))


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_percentiles_are_numpys(count: int) -> None:
    values = [random.Random(count).random() for _ in range(count)]
    for percent in (0, 1, 50, 90, 99, 99.9, 100):
        assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_arrivals() -> None:
    assert arrival_times(3, math.inf, 1.0, random.Random(0)) == [0.0, 0.0, 0.0]
    for burstiness, relative_deviation in ((1.0, 1.0), (0.25, 2.0), (16.0, 0.25)):
        times = arrival_times(4000, 10.0, burstiness, random.Random(0))
        assert times[-1] == pytest.approx(400.0) and times == sorted(times)
        gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
        # A gamma distribution of this shape: standard deviation over mean is 1 / sqrt(shape).
        assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(relative_deviation, rel=0.1)
