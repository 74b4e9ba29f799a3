"""Metrics: what is recorded, and the text that Prometheus reads."""

import re

import pytest

from minivllm.messages.output import RequestMetrics
from minivllm.messages.stats import SchedulerStats
from minivllm.metrics.definitions import buckets_1_2_5, definitions
from minivllm.metrics.families import Histogram
from minivllm.metrics.log_line import LogLine
from minivllm.metrics.recorder import COLUMNS, FinishedRequest, Metrics, StepRecord
from minivllm.utils.board import Board

REQUIRED = {
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries", "prefix_cache_hits"),
    *("num_preemptions", "prompt_tokens", "generation_tokens", "request_success", "time_to_first_token_seconds"),
    *("inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens"),
    "iteration_tokens_total",
}


@pytest.fixture
def metrics():
    return Metrics('a "model"', 1000)


@pytest.fixture
def recorder(metrics):
    return metrics.recorders[0]


def step(**fields):
    return StepRecord(**fields)


def values(metrics):
    found = {}
    for line in metrics.render().decode().splitlines():
        if not line.startswith("#"):
            name, value = re.fullmatch(r"([a-z_:0-9]+(?:\{.*\})?) (\S+)", line).groups()
            found[name.replace('model_name="a \\"model\\"",engine="0"', "").replace("{}", "").replace("{,", "{")] = float(value)
    return found


def test_names_and_kinds():
    known = {each.name: each for each in definitions(1000)}
    assert set(known) >= REQUIRED
    for each in known.values():
        assert each.kind in ("counter", "gauge", "histogram") and bool(each.buckets) == (each.kind == "histogram")
        assert list(each.buckets) == sorted(set(each.buckets))


def test_buckets():
    assert buckets_1_2_5(120) == (1, 2, 5, 10, 20, 50, 100)
    assert buckets_1_2_5(1) == (1,)


def test_a_parser_of_others_reads_it(metrics, recorder):
    parser = pytest.importorskip("prometheus_client.parser")
    recorder.set_info({"block_size": 16, "path": 'C:\\x\n"y"'})
    recorder.record_step(step(num_generation_tokens=3, first_token_seconds=[0.02, 3.0]), SchedulerStats(num_running=2))
    families = {family.name: family for family in parser.text_string_to_metric_families(metrics.render().decode())}
    assert families["minivllm:generation_tokens"].type == "counter"
    assert families["minivllm:generation_tokens"].samples[0].value == 3
    assert families["minivllm:num_requests_running"].samples[0].labels == {"model_name": 'a "model"', "engine": "0"}
    first = {s.labels.get("le"): s.value for s in families["minivllm:time_to_first_token_seconds"].samples if "le" in s.labels}
    assert (first["0.01"], first["0.02"], first["2.5"], first["5.0"], first["+Inf"]) == (0, 1, 1, 2, 2)
    info = families["minivllm:cache_config_info"].samples[0]
    assert info.value == 1 and info.labels["path"] == 'C:\\x\n"y"'


def test_steps_and_stats(metrics, recorder):
    recorder.record_step(
        step(num_prompt_tokens=10, num_cached_tokens=4, num_generation_tokens=1), SchedulerStats(2, 1, 0.25, 10, 4, 3, 1, 10)
    )
    recorder.record_step(step(num_generation_tokens=2, token_seconds=[0.03, 0.06]), SchedulerStats(1, 0, 0.5, 12, 5, 3, 3, 40))
    found = values(metrics)
    assert found["minivllm:prompt_tokens_total"] == 10 and found["minivllm:prompt_tokens_cached_total"] == 4
    assert found["minivllm:generation_tokens_total"] == 3
    assert found["minivllm:num_requests_running"] == 1 and found["minivllm:kv_cache_usage_perc"] == 0.5
    assert found["minivllm:prefix_cache_queries_total"] == 12 and found["minivllm:prefix_cache_hits_total"] == 5
    assert found["minivllm:num_preemptions_total"] == 3
    assert found["minivllm:iteration_tokens_total_count"] == 3 and found["minivllm:iteration_tokens_total_sum"] == 40
    assert found["minivllm:inter_token_latency_seconds_sum"] == pytest.approx(0.09)
    recorder.set_idle()
    assert values(metrics)["minivllm:kv_cache_usage_perc"] == values(metrics)["minivllm:num_requests_running"] == 0


def test_finished_requests(metrics, recorder):
    times = RequestMetrics(10.0, 10.5, 11.0, 13.0, 13.1)
    recorder.record_finished(FinishedRequest("stop", 7, 5, 2, 16, times))
    recorder.record_finished(FinishedRequest("abort", 7, 0, 1, None, RequestMetrics(10.0, finished_time=12.0)))
    found = values(metrics)
    for name, value in (("queue", 0.5), ("prefill", 0.5), ("decode", 2.0), ("inference", 2.5)):
        assert found[f"minivllm:request_{name}_time_seconds_sum"] == value
        assert found[f"minivllm:request_{name}_time_seconds_count"] == 1
    assert found["minivllm:e2e_request_latency_seconds_sum"] == pytest.approx(5.1)
    assert found["minivllm:request_time_per_output_token_seconds_sum"] == 0.5
    counts = {
        reason: found[f'minivllm:request_success_total{{finished_reason="{reason}"}}'] for reason in ("stop", "length", "abort")
    }
    assert counts == {"stop": 1, "length": 0, "abort": 1}


def test_snapshot(metrics, recorder):
    recorder.record_step(step(num_generation_tokens=3, first_token_seconds=[0.02]), None)
    found = {metric.name: metric for metric in metrics.snapshot()}
    assert found["minivllm:generation_tokens"].value == 3
    histogram = found["minivllm:time_to_first_token_seconds"]
    assert isinstance(histogram, Histogram) and histogram.count == 1 and histogram.buckets["+Inf"] == 1


def test_log_line(recorder):
    line = LogLine(recorder, 100.0)
    assert line.text(110.0) is None
    recorder.record_step(step(num_prompt_tokens=100, num_generation_tokens=50), SchedulerStats(3, 1, 0.125, 200, 50))
    assert line.text(120.0) == (
        "Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 tokens/s, Running: 3 reqs, "
        "Waiting: 1 reqs, KV cache usage: 12.5%, Prefix cache hit rate: 25.0%"
    )
    assert "0.0 tokens/s" in line.text(130.0)  # something still runs
    recorder.set_idle()
    assert line.text(140.0) is None
    recorder.record_step(step(num_generation_tokens=10), None)
    line.restart(150.0)
    assert line.text(160.0) is None


def test_cores_side_by_side():
    metrics = Metrics("m", 1000, num_engines=2)
    for recorder, tokens in zip(metrics.recorders, (3, 4), strict=True):
        recorder.record_step(step(num_generation_tokens=tokens), SchedulerStats(num_waiting=tokens))
    lines = metrics.render().decode().splitlines()
    at = lines.index("# TYPE minivllm:generation_tokens_total counter")
    labels = [f'minivllm:generation_tokens_total{{model_name="m",engine="{i}"}} {3 + i}.0' for i in range(2)]
    assert lines[at + 1 : at + 3] == labels
    assert sum(line.startswith("# ") for line in lines) == 2 * len(definitions(1000))
    assert (metrics.num_waiting, metrics.total("generation_tokens")) == (7, 7)
    assert [m.labels["engine"] for m in metrics.snapshot() if m.name == "minivllm:generation_tokens"] == ["0", "1"]
    assert LogLine(metrics.recorders[1], 0.0).text(1.0).startswith("Engine 001: ")


def test_several_processes_say_the_same():
    boards = [Board(2 * COLUMNS, 2)]
    boards.append(Board(2 * COLUMNS, 2, own=1, memory=boards[0].memory))
    both = [Metrics("m", 1000, board=board) for board in boards]
    line = LogLine(both[0].recorders[0], 0.0)
    times = RequestMetrics(10.0, 10.5, 11.0, 13.0, 13.1)
    for metrics, tokens in zip(both, (30, 40), strict=True):
        recorder = metrics.recorders[0]
        recorder.set_info({"block_size": 16})
        recorder.record_step(step(num_generation_tokens=tokens, token_seconds=[0.03]), None)
        recorder.record_finished(FinishedRequest("stop", 7, 5, 2, 16, times))
    both[0].recorders[0].record_step(step(), SchedulerStats(2, 1, 0.25, 10, 4, 3, 1, 10))  # the cores tell the first one only
    both[0].set_idle()  # the two requests are those of others
    assert both[0].render() == both[1].render()
    text = both[1].render().decode()
    labels = '{model_name="m",engine="0"'
    for expected in (
        f"generation_tokens_total{labels}}} 70.0", f'request_success_total{labels},finished_reason="stop"}} 2.0',
        f"num_requests_running{labels}}} 2.0", f"iteration_tokens_total_count{labels}}} 1",
        f'inter_token_latency_seconds_bucket{labels},le="0.05"}} 2', f'cache_config_info{labels},block_size="16"}} 1.0',
    ):  # fmt: skip
        assert f"minivllm:{expected}\n" in text
    assert both[1].num_waiting == 1
    assert "Avg generation throughput: 7.0 tokens/s, Running: 2 reqs, Waiting: 1 reqs" in line.text(10.0)
