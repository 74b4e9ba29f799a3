"""A KV cache in floats of 8 bits: what it costs tiny models, the scales of a checkpoint, and who refuses it."""

import shutil

import pytest
import torch
from model.quantization.test_int8 import PROMPT
from safetensors.torch import load_file, save_file

from minivllm.config.engine_args import EngineArgs
from minivllm.errors import ConfigError
from minivllm.worker.devices.cuda import CudaDevice


@pytest.mark.parametrize("family", ["llama-tied", "gemma2"])
def test_logprobs_stay_close(family, saved, make_runner):
    checkpoint = saved(family)
    runner = make_runner(checkpoint.folder, kv_cache_dtype="fp8")
    assert runner.worker._pool.layers[0].dtype == torch.float8_e4m3fn
    error = (runner.score(PROMPT) - checkpoint.logprobs(PROMPT)[:-1]).abs().mean().item()
    print(f"{family}: mean |d logprob| {error:.5f}")
    assert 0 < error < 0.15


NAMES = [("k_scale", "v_scale"), ("k_proj.k_scale", "v_proj.v_scale"), ("k_proj.output_scale", "v_proj.output_scale")]


@pytest.mark.parametrize("names", [*NAMES, ("kv_scale",)], ids=str)
def test_scales_of_the_checkpoint(names, saved, make_runner, tmp_path):
    """They move the range of the cache: with too large ones, everything in it becomes zero."""
    folder = tmp_path / "scaled"
    shutil.copytree(saved("llama2").folder, folder)
    scales = {"k_scale": 0.02, "v_scale": 1e6, "kv_scale": 1e6}
    tensors = load_file(folder / "model.safetensors")
    for index, (layer, name) in enumerate((layer, name) for layer in range(3) for name in names):
        kind = "k_scale" if name.startswith("k_") else "v_scale"
        tensors[f"model.layers.{layer}.self_attn.{name}"] = torch.full([1] if index % 2 else [], scales[kind])
    save_file(tensors, folder / "model.safetensors")
    runner = make_runner(folder, kv_cache_dtype="fp8")
    runner.score(PROMPT)
    keys, values = runner.worker._pool.layers[0][:, 0].float()
    assert not values.any()
    assert keys.any() == (names != ("kv_scale",))
    if keys.any():
        plain = make_runner(saved("llama2").folder, kv_cache_dtype="fp8")
        plain.score(PROMPT)
        ratio = keys.abs().mean() / plain.worker._pool.layers[0][0, 0].float().abs().mean()
        assert 49 < ratio < 51
    assert torch.equal(make_runner(folder).score(PROMPT), make_runner(saved("llama2").folder).score(PROMPT))


def test_refusals(saved, load_worker, monkeypatch):
    with pytest.raises(ConfigError, match="latent: it keeps no float8_e4m3fn cache"):
        load_worker(saved("deepseek-v3").folder, kv_cache_dtype="fp8")
    device = CudaDevice(EngineArgs(model=str(saved("llama2").folder)).resolve().device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert device.fp8_refusal() == "this GPU has compute capability 8.0, 8.9 is needed"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert device.fp8_refusal() is None
