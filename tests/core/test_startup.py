"""From config to core: the order of things, the number of blocks, and refusals that say what to change."""

import pytest
from fake_worker import FakeWorker, collect, expected_output, make_config, make_request

from minivllm.errors import ConfigError


def test_the_workers_are_prepared_in_order(startup):
    core, ready = startup.build_core(make_config(max_model_len=40))
    (worker,) = startup.workers
    assert worker.calls == ["init_device", "load_model", "allocate_kv", "warm_up"]
    assert (worker.num_blocks, ready.num_blocks, ready.block_size, ready.max_model_len) == (64, 64, 4, 40)
    request = make_request("a", [1, 2, 3])
    core.add([request])
    assert collect(core)["a"].tokens == expected_output(request, 40)[0]
    core.shutdown()
    core.shutdown()
    assert worker.calls[-1] == "shutdown"
    with pytest.raises(RuntimeError, match="shut down"):
        core.call("check_health", [])


def test_an_explicit_number_of_blocks_wins_and_limits_the_length(startup):
    _, ready = startup.build_core(make_config(max_model_len=40, num_gpu_blocks_override=5))
    assert (ready.num_blocks, ready.max_model_len) == (5, 20)


@pytest.mark.parametrize(
    ("cache", "advice"),
    [
        ({}, "Set --max-model-len to 256 or less, or raise --gpu-memory-utilization, or free memory."),
        ({"kv_cache_memory_bytes": 4096}, "Set --max-model-len to 256 or less, or raise --kv-cache-memory-bytes."),
    ],
)
def test_a_length_that_does_not_fit_is_refused(startup, cache, advice):
    with pytest.raises(ConfigError) as caught:
        startup.build_core(make_config(max_model_len=2**24, **cache))
    assert caught.value.message == (
        "To serve one request of max_model_len=16777216 tokens, 0.25 GiB of KV cache are needed, but 0.00 GiB are available. "
        + advice
    )
    assert startup.workers[0].calls[-1] == "shutdown"


def test_an_automatic_length_is_lowered_to_what_fits(startup):
    config = make_config(max_model_len=1000)
    object.__setattr__(config.model, "max_model_len_auto", True)
    _, ready = startup.build_core(config)
    assert (ready.num_blocks, ready.max_model_len) == (64, 256)


@pytest.mark.parametrize(
    ("times", "options", "num_tokens"),
    [
        ({64: 0.03, 128: 0.05}, {}, 592),  # 0.01 s, 0.3125 ms a token and 0.0003 ms a pair: 600 tokens in 0.25 s
        ({64: 2.0}, {}, 32),  # the least that goes on
        ({64: 0.0001, 128: 0.0002}, {}, 2048),
        ({}, {"max_num_batched_tokens_auto": False}, 2048),
    ],
)
def test_a_step_has_as_many_tokens_as_the_worker_is_fast(startup, monkeypatch, times, options, num_tokens):
    monkeypatch.setattr(FakeWorker, "time_prefill", lambda self, length: times[length])
    scheduler = {"max_num_batched_tokens": 2048, "max_num_batched_tokens_auto": True, **options}
    core, _ = startup.build_core(make_config(max_model_len=3000, num_gpu_blocks_override=1000, **scheduler))
    core.add([make_request("a", [1] * 2500, max_tokens=1)])
    core.step()
    assert core.scheduler.stats().num_batched_tokens == num_tokens


def test_a_given_step_size_is_not_measured(startup):
    startup.build_core(make_config(max_model_len=40))
    assert "time_prefill" not in startup.workers[0].calls


def test_a_cache_without_room_for_the_shortest_measurement(startup):
    """Nothing is measured, and nothing limits a step but the number of tokens."""
    limits = {"max_num_batched_tokens": 2048, "max_num_batched_tokens_auto": True}
    core, ready = startup.build_core(make_config(max_model_len=3000, num_gpu_blocks_override=15, **limits))
    assert ready.max_model_len == 60 and "time_prefill" not in startup.workers[0].calls
    request = make_request("a", [1] * 50, max_tokens=5)
    core.add([request])
    core.step()
    assert core.scheduler.stats().num_batched_tokens == 50
