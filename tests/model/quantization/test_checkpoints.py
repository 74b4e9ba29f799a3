"""Quantized checkpoints of each format, written one number at a time, against transformers on the weights they stand for."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model.conftest import Checkpoint, Runner
from model.families import COMMON
from model.quantization.test_int8 import PROMPT
from model.quantization.writers import AWQ, GPTQ, BitsAndBytes, Compressed, Float8
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from minivllm.errors import ConfigError
from minivllm.kernels import extension_error
from minivllm.model.layers.matrix import Matrix

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
WRITERS = {
    "gptq, groups of 32": GPTQ(),
    "gptq, asymmetric, groups of 64, v2": GPTQ(group=64, symmetric=False, form="gptq_v2"),
    "gptq, act-order, groups of 128": GPTQ(group=128, symmetric=False, act_order=True),
    "gptq, one group a row": GPTQ(group=-1),
    "gptq, 8 bits": GPTQ(bits=8, group=128),
    "awq, groups of 64": AWQ(),
    "awq, groups of 128": AWQ(128),
    "compressed-tensors, W4A16": Compressed(),
    "compressed-tensors, W4A16, asymmetric": Compressed(group=128, symmetric=False),
    "compressed-tensors, W8A16": Compressed(8, 0),
    "compressed-tensors, W8A8": Compressed(8, 0, activations=True),
    "compressed-tensors, FP8": Compressed(8, 0, "float", activations=True),
    "fp8, a scale a weight": Float8(),
    "fp8, static": Float8("static"),
    "fp8, blocks of 128": Float8(128),
    "fp8, blocks of 48": Float8(48),
    "bitsandbytes, NF4": BitsAndBytes(),
    "bitsandbytes, NF4, double": BitsAndBytes(nested=True),
    "bitsandbytes, FP4": BitsAndBytes("fp4"),
    "bitsandbytes, int8": BitsAndBytes("int8"),
}
UNPACKED = {"fp8, blocks of 48"}
OF_OTHER_SHAPES = {"gptq": GPTQ(), "fp8": Float8(32), "fp8, uneven": Float8(48)}  # than Llama's


def write(
    folder: Path, writer: Any, model: transformers.PreTrainedModel, keep: Callable[[str], bool] = str.isspace
) -> Checkpoint:
    """The model's checkpoint with its linear layers quantized, but for the head and those to `keep`; the model gets the weights
    that were written.
    """
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items() if ".experts." not in name}
    for name, weight in matrices(model):
        if name != "lm_head" and not keep(name):
            parts, again = writer.write(weight.clone())
            tensors.pop(f"{name}.weight", None)
            tensors |= {name + end: part.contiguous() for end, part in parts.items()}
            weight.copy_(again)
    return save(folder, tensors, model, writer.config)


def matrices(model: transformers.PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """By the names that checkpoints give them."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            yield name, module.weight.data
        elif name.endswith(".experts"):
            for expert, (both, down) in enumerate(zip(module.gate_up_proj.data, module.down_proj.data, strict=True)):
                for part, weight in zip(("gate", "up", "down"), (*both.chunk(2), down), strict=True):
                    yield f"{name}.{expert}.{part}_proj", weight


def save(
    folder: Path, tensors: dict[str, torch.Tensor], model: transformers.PreTrainedModel, form: dict[str, Any]
) -> Checkpoint:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    config = model.config.to_dict() | {"architectures": [type(model).__name__], "quantization_config": form}
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint(folder, model)


def add(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(load_file(folder / "model.safetensors") | tensors, folder / "model.safetensors")


def tiny(config_class: str = "LlamaConfig", **values: Any) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**{**COMMON, **SIZES, **values})
    return transformers.AutoModelForCausalLM.from_config(config).float().eval()


def error(runner: Runner, checkpoint: Checkpoint) -> float:
    """Mean difference of logprobs."""
    return (runner.score(PROMPT) - checkpoint.logprobs(PROMPT)[:-1]).abs().mean().item()


def schemes(runner: Runner) -> set[str]:
    return {
        type(layer.scheme).__name__
        for path, layer in runner.worker._runner._model.walk()
        if isinstance(layer, Matrix) and "layers" in path
    }  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_equal_to_the_weights_it_stands_for(name, tmp_path, make_runner, monkeypatch):
    checkpoint = write(tmp_path / "model", WRITERS[name], tiny())
    runner = make_runner(checkpoint.folder)
    assert error(runner, checkpoint) < 2e-5
    packed = {"Unquantized"} if name in UNPACKED else {"Grouped"}
    if extension_error() is None:
        assert schemes(runner) == {"Unquantized"}  # the compiled kernels take bfloat16 only
        runner = make_runner(checkpoint.folder, dtype="bfloat16")
        assert schemes(runner) == packed
        found = error(runner, checkpoint)
        plain = save(tmp_path / "plain", checkpoint.reference.state_dict(), checkpoint.reference, {})
        expected = error(make_runner(plain.folder, dtype="bfloat16"), checkpoint)
        print(f"{name}: {found:.4f} in bfloat16, unpacked {expected:.4f}", end=", ")
        assert found < 1.3 * expected
    monkeypatch.setenv("MINIVLLM_NO_EXT", "1")
    runner = make_runner(checkpoint.folder)
    assert schemes(runner) == packed
    found = error(runner, checkpoint)
    print(f"{found:.1e} in float32")
    assert found < 6e-3


def test_layers_that_are_left_out(tmp_path, make_runner):
    checkpoint = write(tmp_path / "model", GPTQ(), tiny(), lambda name: "layers.0.mlp" in name or name.endswith("k_proj"))
    assert error(make_runner(checkpoint.folder), checkpoint) < 2e-5
    runner = make_runner(checkpoint.folder, dtype="bfloat16")
    assert error(runner, checkpoint) < 0.05 and schemes(runner) == {"Grouped", "Unquantized"}


@pytest.mark.skipif(extension_error() is not None, reason="only the compiled kernels are recorded")
@pytest.mark.parametrize("name", ["gptq, act-order, groups of 128", "bitsandbytes, NF4", "fp8, blocks of 128"])
def test_recorded_like_other_models(name, tmp_path, make_runner):
    checkpoint = write(tmp_path / "model", WRITERS[name], tiny())
    ops = make_runner(checkpoint.folder, dtype="bfloat16").worker._runner._graphs._program.ops
    assert ops.count("gemm_grouped") == 2 * 4


@pytest.mark.parametrize("name", ["gptq, act-order, groups of 128", "bitsandbytes, NF4, double"])
def test_by_the_code_of_transformers(name, tmp_path, make_runner):
    checkpoint = write(tmp_path / "model", WRITERS[name], tiny())
    runner = make_runner(checkpoint.folder, model_impl="transformers")
    assert error(runner, checkpoint) < 2e-5
    runner = make_runner(checkpoint.folder, model_impl="transformers", dtype="bfloat16")
    assert error(runner, checkpoint) < 0.06 and schemes(runner) == {"Grouped"}


def test_zero_biases_that_nobody_asked_for(tmp_path, make_runner):
    checkpoint = write(tmp_path / "model", GPTQ(), tiny())
    add(checkpoint.folder, {"model.layers.0.self_attn.o_proj.bias": torch.zeros(128)})
    assert error(make_runner(checkpoint.folder), checkpoint) < 2e-5
    add(checkpoint.folder, {"model.layers.0.self_attn.o_proj.bias": torch.ones(128)})
    with pytest.raises(ConfigError, match=r"has model.layers.0.self_attn.o_proj.bias, which a LlamaForCausalLM does not have"):
        make_runner(checkpoint.folder)


@pytest.mark.parametrize("name", OF_OTHER_SHAPES)
def test_experts_and_head_by_head_projections(name, tmp_path, make_runner):
    writer = OF_OTHER_SHAPES[name]
    sizes = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 32}
    model = tiny("Qwen3MoeConfig", **sizes)
    checkpoint = write(tmp_path / "moe", writer, model)
    assert error(make_runner(checkpoint.folder), checkpoint) < 2e-5
    checkpoint = write(tmp_path / "bloom", writer, tiny("BloomConfig"))
    assert error(make_runner(checkpoint.folder), checkpoint) < 2e-5


def test_mxfp4_of_gpt_oss(tmp_path, make_runner):
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
    model = tiny("GptOssConfig", **sizes)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = parameter.shape
            blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
            scales = torch.randint(122, 126, (experts, rows, columns // 32), dtype=torch.uint8)
            parameter.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            del tensors[name]
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    checkpoint = save(tmp_path / "model", tensors, model, {"quant_method": "mxfp4"})
    assert error(make_runner(checkpoint.folder), checkpoint) < 2e-5
    assert error(make_runner(checkpoint.folder, dtype="bfloat16"), checkpoint) < 0.05


@pytest.mark.parametrize(
    ("end", "change", "message"),
    [
        (".scales", lambda t: t[:-1], r"q_proj.qzeros has the shape \[4, 16\], \[3, 16\] is expected"),
        (".qzeros", lambda t: None, "the checkpoint lacks qzeros, which belongs to model.layers.0.self_attn.q_proj.qweight"),
        (".g_idx", lambda t: t + 9, "q_proj.g_idx names other groups than the 4 that there are"),
        (".qweight", lambda t: t.repeat(2, 1), r"g_idx has the shape \[128\], \[256\] is expected"),
    ],
)
def test_parts_that_do_not_fit(end, change, message, tmp_path, load_worker):
    folder = write(tmp_path / "model", GPTQ(), tiny()).folder
    name = f"model.layers.0.self_attn.q_proj{end}"
    tensors = load_file(folder / "model.safetensors")
    changed = change(tensors.pop(name))
    save_file(tensors | ({} if changed is None else {name: changed.contiguous()}), folder / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        load_worker(folder)


def test_transposed_weights_are_refused(saved, tmp_path, load_worker):
    folder = shutil.copytree(saved("gpt2").folder, tmp_path / "gpt2")
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": GPTQ().config}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="a quantized GPT2LMHeadModel is not supported"):
        load_worker(folder)
