"""8-bit floats on a device that multiplies them as they are: the reference, which rounds activations as a GPU does."""

import pytest
import torch
from model.quantization.test_checkpoints import WRITERS, error, matrices, save, tiny, write
from model.quantization.test_online import fp8
from model.quantization.writers import Float8

from minivllm.kernels import ops_for
from minivllm.kernels.reference.gemm_fp8 import Fp8Weight
from minivllm.model.layers.matrix import Matrix


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setenv("MINIVLLM_NO_EXT", "1")
    monkeypatch.setattr(ops_for("cpu", use_extension=False).gemm_fp8, "is_native", lambda device: True)


def round_activations(model, columns, head):
    """In all linear layers, or all but the head, every so many columns (0: all) with a scale of their own."""

    def rounded(module, args):
        groups = args[0].unflatten(-1, (-1, columns or args[0].shape[-1]))
        scales = groups.abs().amax(-1, keepdim=True) / 448
        return (((groups / scales).to(torch.float8_e4m3fn).float() * scales).flatten(-2),)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and (head or name != "lm_head"):
            module.register_forward_pre_hook(rounded)


def close(runner, checkpoint, columns=0, head=False):
    """To transformers with rounded activations, but for numbers that lie between two and fall to the other one."""
    unrounded = error(runner, checkpoint)
    round_activations(checkpoint.reference, columns, head)
    runner.step({}, freed=[0])
    found = error(runner, checkpoint)
    print(f"mean |d logprob| {found:.4f}, {unrounded:.4f} to activations as they are")
    return found < 0.5 * unrounded


def weights(runner):
    walk = runner.worker._runner._model.walk()
    return [layer.weight for path, layer in walk if isinstance(layer, Matrix) and "layers" in path]


@pytest.mark.parametrize(
    ("name", "columns"), [("compressed-tensors, FP8", 0), ("fp8, a scale a weight", 0), ("fp8, blocks of 128", 128)]
)
def test_checkpoints(name, columns, tmp_path, make_runner, native):
    checkpoint = write(tmp_path / "model", WRITERS[name], tiny())
    runner = make_runner(checkpoint.folder)
    assert close(runner, checkpoint, columns)
    for weight in weights(runner):
        assert isinstance(weight, Fp8Weight)
        assert weight.scales.shape == (weight.data.shape[0], weight.data.shape[1] // columns if columns else 1)


def test_rounded_on_loading(tmp_path, make_runner, native):
    model = tiny().bfloat16().float()
    checkpoint = save(tmp_path / "model", model.state_dict(), model, {})
    runner = make_runner(checkpoint.folder, quantization="fp8")
    assert all(isinstance(weight, Fp8Weight) for weight in weights(runner))
    for _, weight in matrices(model):
        weight.copy_(fp8(weight))
    assert close(runner, checkpoint, head=True)


def test_other_blocks_stay_packed_in_groups(tmp_path, make_runner, native):
    checkpoint = write(tmp_path / "model", Float8(32), tiny())
    runner = make_runner(checkpoint.folder)
    assert not any(isinstance(weight, Fp8Weight) for weight in weights(runner))
    assert error(runner, checkpoint) < 6e-3
