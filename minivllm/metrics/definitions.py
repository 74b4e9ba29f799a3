"""Every metric that we publish: vLLM's names under our prefix, vLLM's labels and buckets. Read by `metrics.recorder`."""

from dataclasses import dataclass

PREFIX = "minivllm:"

FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0
)  # fmt: skip
REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0
)  # fmt: skip
REASONS = ("stop", "length", "abort", "error", "timeout")
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class Definition:
    """`label` is the name of one more label, beside model_name and engine, and `label_values` is what it can be."""

    name: str
    kind: str  # "counter", "gauge", "histogram"
    help: str
    buckets: tuple[float, ...] = ()
    label: str | None = None
    label_values: tuple[str, ...] = ("",)


def definitions(max_model_len: int) -> list[Definition]:
    lengths = buckets_1_2_5(max_model_len)

    def counter(name: str, text: str, label: str | None = None, label_values: tuple[str, ...] = ("",)) -> Definition:
        return Definition(name, "counter", text, label=label, label_values=label_values)

    def gauge(name: str, text: str) -> Definition:
        return Definition(name, "gauge", text)

    def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Definition:
        return Definition(name, "histogram", text, buckets)

    return [
        gauge("num_requests_running", "Number of requests in model execution batches."),
        gauge("num_requests_waiting", "Number of requests waiting to be processed."),
        gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
        counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."),
        counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."),
        counter("num_preemptions", "Cumulative number of preemptions from the engine."),
        counter("prompt_tokens", "Number of prefill tokens processed."),
        counter("prompt_tokens_cached", "Number of prompt tokens taken from the prefix cache."),
        counter("generation_tokens", "Number of generation tokens processed."),
        counter("request_success", "Count of finished requests, by the reason of their end.", "finished_reason", REASONS),
        counter("admission_rejections", "Count of requests refused because the queue was full.", "reason", ("queue_full",)),
        histogram("iteration_tokens_total", "Histogram of number of tokens per engine step.", STEP_TOKENS),
        histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", FIRST_TOKEN_SECONDS),
        histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", TOKEN_SECONDS),
        histogram(
            "request_time_per_output_token_seconds", "Histogram of mean time per output token of a request.", TOKEN_SECONDS
        ),
        histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", REQUEST_SECONDS),
        histogram("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", REQUEST_SECONDS),
        histogram("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", REQUEST_SECONDS),
        histogram("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", REQUEST_SECONDS),
        histogram("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", REQUEST_SECONDS),
        histogram("request_prompt_tokens", "Number of prefill tokens processed, per request.", lengths),
        histogram("request_generation_tokens", "Number of generation tokens processed, per request.", lengths),
        histogram("request_params_n", "Histogram of the n request parameter.", (1, 2, 5, 10, 20)),
        histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.", lengths),
    ]


def buckets_1_2_5(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … up to `largest`."""
    found: list[float] = []
    scale = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * scale > largest:
                return tuple(found)
            found.append(mantissa * scale)
        scale *= 10
