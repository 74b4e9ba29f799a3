"""From config to core: the order of things, the number of blocks, and refusals that say what to change."""

import pytest
from fake_worker import collect, expected_output, make_config, make_request

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
