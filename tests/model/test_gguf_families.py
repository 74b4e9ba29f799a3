"""GGUF files of every architecture that we read, against transformers on the same weights."""

from pathlib import Path

import pytest
import torch
from model import gguf_models
from model.conftest import Runner

from minivllm.config.gguf_families import ARCHITECTURES
from minivllm.model.layers.moe import Experts
from minivllm.model.loading import load
from minivllm.model.quantization.grouped import Form

TOKENS = [5, 9, 77, 120, 33, 8, 150, 3, 64, 17, 99, 12, 40, 41, 42, 7, 90, 20, 55, 31]


@pytest.mark.parametrize("row", gguf_models.ROWS)
def test_equal_to_transformers(row: str, tmp_path: Path, make_checkpoint, make_runner) -> None:
    name, changed = gguf_models.ROWS[row]
    checkpoint = make_checkpoint(name, changed=changed)
    runner = make_runner(gguf_models.write(row, checkpoint, tmp_path / "m.gguf"))
    expected, ours = checkpoint.logprobs(TOKENS), runner.score(TOKENS)
    torch.testing.assert_close(ours, expected[:-1], rtol=0, atol=2e-4)
    assert runner.sequences[0][-1] == int(expected[-1].argmax())


@pytest.mark.parametrize("stored", [{"_exps": "Q4_0"}, {"gate_exps": "Q4_1", "_exps": "Q8_0"}], ids=str)
@pytest.mark.parametrize("row", ["llama (Mixtral)", "qwen3moe"])
def test_experts_kept_packed(row: str, stored, tmp_path: Path, make_checkpoint, make_runner, monkeypatch) -> None:
    """In bfloat16, about as close to the weights in float32 as the unpacked in bfloat16 are. Wrong experts make 0.25."""
    name, changed = gguf_models.ROWS[row]
    sizes = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 96, "head_dim": 8, "initializer_range": 0.08}
    path = gguf_models.write(row, make_checkpoint(name, changed=changed | sizes), tmp_path / "m.gguf", stored)
    packed, exact = make_runner(path, dtype="bfloat16"), make_runner(path).score(TOKENS)
    monkeypatch.setattr(load, "_keep_packed", lambda *_: None)
    unpacked = make_runner(path, dtype="bfloat16")
    assert [sorted(forms) for forms in forms_of(packed)] == [["down", "gate_up"]] * 3 and not any(forms_of(unpacked))
    error, usual = ((runner.score(TOKENS) - exact).abs().mean() for runner in (packed, unpacked))
    assert error < 8e-3 and usual < 2e-2


def forms_of(runner: Runner) -> list[dict[str, Form]]:
    return [layer._forms for _, layer in runner.worker._runner._model.walk() if isinstance(layer, Experts)]


def test_every_architecture_has_a_row() -> None:
    assert {row.split(" ")[0] for row in gguf_models.ROWS} == set(ARCHITECTURES)
