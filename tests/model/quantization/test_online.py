"""--quantization int4, fp8 and bitsandbytes of ordinary checkpoints, against transformers on weights rounded likewise."""

import pytest
import torch
from bitsandbytes import functional
from model.quantization.test_checkpoints import error, matrices, save, tiny
from model.quantization.test_int8 import token_logprobs

from minivllm.config.quantization import METHODS, ONLINE
from minivllm.config.sections.model import ModelConfig
from minivllm.errors import ConfigError
from minivllm.kernels import extension_error, ops_for
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.registry import FORMATS, SCHEMES


def int4(weight):
    groups = weight.unflatten(1, (-1, 32))
    least = groups.amin(-1, keepdim=True).half().float()
    step = ((groups.amax(-1, keepdim=True) - least) / 15).half().float()
    return (torch.round((groups - least) / step).clamp(0, 15) * step + least).flatten(1)


def fp8(weight):
    scale = (weight.abs().amax(1, keepdim=True) / 448 * 256).half().float() / 256  # scales of other bits round to other numbers
    return (weight / scale).to(torch.float8_e4m3fn).float() * scale


def nf4(weight):
    return functional.dequantize_4bit(*functional.quantize_4bit(weight.contiguous(), blocksize=64, quant_type="nf4"))


def int8(weight):
    gemm = ops_for("cpu", use_extension=False).gemm_int8
    return gemm.rows(gemm.pack(weight), torch.arange(len(weight)), torch.float32)


ROUNDING = {"int4": (int4, int8), "fp8": (fp8, fp8), "bitsandbytes": (nf4, lambda weight: weight)}


@pytest.mark.parametrize("name", ROUNDING)
def test_equal_to_the_rounded_weights(name, tmp_path, make_runner, monkeypatch):
    model = tiny().bfloat16().float()  # to be read without rounding
    checkpoint = save(tmp_path / "model", model.state_dict(), model, {})
    layers, head = ROUNDING[name]
    for path, weight in matrices(model):
        weight.copy_((head if path == "lm_head" else layers)(weight))
    if extension_error() is None:
        assert error(make_runner(checkpoint.folder, dtype="bfloat16", quantization=name), checkpoint) < 0.06
        with pytest.raises(ConfigError, match=f"--quantization {name} multiplies in bfloat16 on this device"):
            make_runner(checkpoint.folder, quantization=name)
    monkeypatch.setenv("MINIVLLM_NO_EXT", "1")
    found = error(make_runner(checkpoint.folder, quantization=name), checkpoint)
    print(f"{name}: {found:.1e}")
    assert found < 6e-3


@pytest.mark.skipif(extension_error() is not None, reason="only the compiled kernels are recorded")
@pytest.mark.parametrize(("name", "head"), [("int4", "Int8"), ("fp8", "Float8Rows"), ("bitsandbytes", "Unquantized")])
def test_heads_and_narrow_layers(name, head, saved, make_runner):
    runner = make_runner(saved("llama-tied").folder, quantization=name, dtype="bfloat16")  # rows of 48 and of 80
    model = runner.worker._runner._model
    found = {path: type(layer.scheme).__name__ for path, layer in model.walk() if isinstance(layer, Matrix)}
    assert found.pop("model.embed_tokens") == (head if head == "Int8" else "Unquantized")
    assert set(found.values()) == {"Unquantized"}
    runner.worker._runner._graphs._program.ops  # noqa: B018  recorded


def test_names_are_the_choices_of_the_options():
    (declared,) = [f.metadata["declared"] for f in ModelConfig.__dataclass_fields__.values() if f.name == "quantization"]
    assert set(declared["choices"]) == {*SCHEMES, *(method for method, _ in FORMATS)}
    assert set(ONLINE) == set(SCHEMES) and set(METHODS) == {method for method, _ in FORMATS}


@pytest.mark.skipif(extension_error() is not None, reason="minutes of work for the reference kernels")
@pytest.mark.parametrize(("name", "most"), [("fp8", 1.06), ("bitsandbytes", 1.3)])
def test_what_it_costs_the_demo_model(name, most, smollm2):
    plain, _ = token_logprobs(smollm2)
    small, text = token_logprobs(smollm2, quantization=name)
    increase, moved = (plain - small).mean().exp().item(), (plain - small).abs().mean().item()
    print(f"{name}: perplexity {(-small.mean()).exp():.3f}, times {increase:.4f}; mean |d logprob| {moved:.4f}")
    assert increase < most and text.startswith(" Paris")
