"""A KV cache in int8: what it keeps, what it costs tiny models and the demo model, and who refuses it."""

import pytest
import torch
from model.quantization.test_int8 import PROMPT, token_logprobs

from minivllm.config.engine_args import EngineArgs
from minivllm.errors import ConfigError
from minivllm.kernels import extension_error
from minivllm.kernels.kv_pages import as_floats, row_width
from minivllm.kernels.reference.kv_write import write_kv
from minivllm.messages.sampling_params import SamplingParams
from minivllm.model.attention.select import select_backend

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def test_no_value_moves_by_more_than_half_a_unit():
    torch.manual_seed(0)
    k, v = torch.randn(2, 9, 3, 40) * torch.logspace(-4, 4, 9)[:, None, None]
    v[2] = 0
    slots = torch.tensor([0, 7, 3, 12, 5, -1, 1, 13, 9])
    kv = torch.full((2, 2, 3, 7, row_width(40, torch.int8)), -1, dtype=torch.int8)
    write_kv(k, v, kv, slots)
    found, kept = as_floats(kv).transpose(2, 3).flatten(1, 2), slots >= 0
    for rows, written in zip(found, (k, v), strict=True):
        unit = written[kept].abs().amax(-1, keepdim=True) / 127
        assert ((rows[slots[kept]] - written[kept]).abs() <= unit * 0.5001).all()
        assert rows[slots[kept]].abs().amax(-1) == pytest.approx(written[kept].abs().amax(-1))
    assert found[:, [2, 4, 6, 8, 10, 11]].isnan().all()  # nothing else was touched


@pytest.mark.parametrize("family", ["llama-tied", "mistral", "gemma2", "gpt-oss"])
def test_logprobs_stay_close(family, saved, make_runner):
    checkpoint = saved(family)
    runner = make_runner(checkpoint.folder, kv_cache_dtype="int8")
    error = (runner.score(PROMPT) - checkpoint.logprobs(PROMPT)[:-1]).abs().mean().item()
    print(f"{family}: mean |d logprob| {error:.5f}")
    assert 0 < error < 0.03


def test_chunks_cached_prefixes_and_preemption_change_nothing(saved, make_runner):
    runner = make_runner(saved("llama2").folder, kv_cache_dtype="int8")
    runner.step({0: 10}, [runner.new(0, PROMPT, [8, 5, 6, 7], GREEDY)])
    for _ in range(4):
        runner.step({0: 1})
    expected = runner.sequences[0]
    in_chunks = runner.new(1, PROMPT, [20, 21, 2, 23], GREEDY)
    cached = runner.new(2, expected[:11], [8, 5, 9, 4], GREEDY, computed=8)
    preempted = runner.new(3, expected[:12], [30, 31, 32, 33], GREEDY)
    runner.step({1: 3, 2: 3, 3: 12}, [in_chunks, cached, preempted])
    runner.step({1: 5, 2: 1, 3: 1})
    runner.step({1: 2, 2: 1})
    runner.step({1: 1})
    assert runner.sequences[1] == expected[:12]
    assert runner.sequences[2] == runner.sequences[3] == expected[:14]


def test_bytes_of_a_block(saved, load_worker):
    checkpoint = saved("llama2")
    config = checkpoint.reference.config
    layers, heads, dim = config.num_hidden_layers, config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    spec = load_worker(checkpoint.folder, kv_cache_dtype="int8").kv_spec()
    assert spec.bytes_per_block == layers * 2 * spec.block_size * heads * (dim + 4)


@pytest.mark.skipif(extension_error() is not None, reason="only the compiled kernels are recorded")
def test_recorded(saved, make_runner):
    runner = make_runner(saved("llama2").folder, kv_cache_dtype="int8", dtype="bfloat16")
    ops = runner.worker._runner._graphs._program.ops
    assert ops.count("attention") == ops.count("kv_write") == 3


def test_refusals(saved, load_worker):
    spec = EngineArgs(model=str(saved("llama2").folder)).resolve().spec
    with pytest.raises(ConfigError, match="paged: it keeps an int8 cache on a CPU only"):
        select_backend(spec, torch.bfloat16, torch.int8, "cuda")
    with pytest.raises(ConfigError, match="latent: it keeps no int8 cache"):
        load_worker(saved("deepseek-v3").folder, kv_cache_dtype="int8")


@pytest.mark.skipif(extension_error() is not None, reason="minutes of work for the reference kernels")
def test_what_it_costs_the_demo_model(smollm2):
    plain, _ = token_logprobs(smollm2)
    small, text = token_logprobs(smollm2, kv_cache_dtype="int8")
    assert text.startswith(" Paris")
    difference = small - plain
    increase = (-difference.mean()).exp().item()
    print(f"perplexity {(-plain.mean()).exp():.3f}, times {increase:.4f}; mean |d logprob| {difference.abs().mean():.4f}")
    assert increase < 1.005
    assert difference.abs().mean() < 0.08  # bfloat16 alone is off by up to 0.04
