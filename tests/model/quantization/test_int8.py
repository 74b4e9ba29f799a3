"""int8 weights: tiny models against transformers on the same rounded weights, and what they cost the demo model."""

import functools
import gc
from pathlib import Path

import pytest
import torch
from model.families import FAMILIES

from minivllm import LLM, SamplingParams
from minivllm.errors import ConfigError
from minivllm.kernels import extension_error, ops_for
from minivllm.model.layers.embedding import Embedding
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.int8 import Int8
from minivllm.worker.devices.base import Memory

PROMPT = [5, 9, 77, 120, 33, 8, 150, 3, 64, 17]
TEXT = Path(__file__).with_name("public_domain.txt")


def round_weights(model: torch.nn.Module) -> None:
    """What int8 makes of the weights of a transformers model."""
    gemm = ops_for("cpu", use_extension=False).gemm_int8
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(gemm.rows(gemm.pack(module.weight), torch.arange(len(module.weight)), torch.float32))


@pytest.mark.parametrize("family", ["llama-tied", "llama-biases", "qwen2-untied", "mistral"])
def test_equal_to_the_rounded_weights(family, make_checkpoint, make_runner):
    checkpoint = make_checkpoint(family)
    before = checkpoint.logprobs(PROMPT)[:-1]
    round_weights(checkpoint.reference)
    expected = checkpoint.logprobs(PROMPT)[:-1]
    runner = make_runner(checkpoint.folder, quantization="int8")
    error = (runner.score(PROMPT) - expected).abs().mean()
    assert error < 2e-3 and error < (before - expected).abs().mean() / 10


@pytest.mark.parametrize("family", FAMILIES)
def test_moves_every_family_a_little(family, saved, make_runner):
    checkpoint = saved(family)
    runner = make_runner(checkpoint.folder, quantization="int8", max_model_len=64)
    expected = checkpoint.logprobs(PROMPT)[:-1]
    # By the median: where a router chooses another expert, a position moves more.
    moved = (runner.score(PROMPT) - expected).abs().mean(1)
    assert 0 < moved.median() < 0.1 * (expected - expected.mean(0)).abs().mean()
    assert any(isinstance(layer, Matrix) and isinstance(layer.scheme, Int8) for _, layer in runner.worker._runner._model.walk())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama-tied", "llama2"])
def test_every_multiplied_matrix_is_int8(family, dtype, make_checkpoint, load_worker):
    model = load_worker(make_checkpoint(family).folder, quantization="int8", dtype=dtype)._runner._model
    matrices = [layer for _, layer in model.walk() if isinstance(layer, Matrix)]
    assert len(matrices) == 3 * 4 + (1 if family == "llama-tied" else 2)
    for layer in matrices:
        if isinstance(layer, Embedding) and family == "llama2":
            assert layer.weight.dtype == getattr(torch, dtype)  # only looked up, so it stays
        else:
            assert isinstance(layer.scheme, Int8) and layer.weight.data.itemsize == 1


@pytest.mark.skipif(extension_error() is not None, reason="only the compiled kernels are recorded")
def test_recorded_like_other_models(make_checkpoint, make_runner):
    runner = make_runner(make_checkpoint("llama-tied").folder, quantization="int8", dtype="bfloat16")
    ops = runner.worker._runner._graphs._program.ops
    assert ops.count("gemm_int8") == 3 * 4 and ops.count("gemm_int8_rows") == 1 and "gemm" not in ops


def test_room_is_needed_for_the_small_weights_only(make_checkpoint, load_worker, monkeypatch):
    checkpoint = make_checkpoint("llama-tied")
    folder, weights = checkpoint.folder, sum(p.numel() for p in checkpoint.reference.parameters())
    memory = Memory(total=2**30, free=2 * weights)
    monkeypatch.setattr("minivllm.worker.devices.cpu.CpuDevice.memory", lambda self: memory)
    load_worker(folder, quantization="int8")
    with pytest.raises(ConfigError, match=r"in float32, but only .* GiB of memory are free\. .*--dtype, --quantization"):
        load_worker(folder)


@functools.cache
def token_logprobs(folder: Path, **options: str) -> tuple[torch.Tensor, str]:
    """Of the text, in bfloat16; and what a prompt is continued with."""
    llm = LLM(str(folder), dtype="bfloat16", max_model_len=2048, max_num_seqs=2, **options)
    scored, greedy = llm.generate(
        [TEXT.read_text(), "The capital of France is"],
        [SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0), SamplingParams(max_tokens=8, temperature=0.0)],
        use_tqdm=False,
    )
    found = [
        entry[token].logprob for token, entry in zip(scored.prompt_token_ids, scored.prompt_logprobs, strict=True) if entry
    ]
    llm.shutdown()
    gc.collect()
    return torch.tensor(found), greedy.outputs[0].text


@pytest.mark.skipif(extension_error() is not None, reason="minutes of work for the reference kernels")
def test_what_it_costs_the_demo_model(smollm2):
    plain, _ = token_logprobs(smollm2)
    small, text = token_logprobs(smollm2, quantization="int8")
    assert len(plain) > 1700 and text.startswith(" Paris")
    difference = small - plain
    increase = (-difference.mean()).exp().item()
    print(f"perplexity {(-plain.mean()).exp():.3f}, times {increase:.4f}; mean |d logprob| {difference.abs().mean():.4f}")
    assert increase < 1.01
    assert difference.abs().mean() < 0.1
