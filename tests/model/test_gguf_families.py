"""GGUF files of every architecture that we read, against transformers on the same weights."""

from pathlib import Path

import pytest
import torch
from model import gguf_models

from minivllm.config.gguf_families import ARCHITECTURES
from minivllm.messages.sampling_params import SamplingParams

TOKENS = [5, 9, 77, 120, 33, 8, 150, 3, 64, 17, 99, 12, 40, 41, 42, 7, 90, 20, 55, 31]
SCORED = SamplingParams(temperature=0.0, prompt_logprobs=-1)


@pytest.mark.parametrize("row", gguf_models.ROWS)
def test_equal_to_transformers(row: str, tmp_path: Path, make_checkpoint, make_runner) -> None:
    name, changed = gguf_models.ROWS[row]
    checkpoint = make_checkpoint(name, changed=changed)
    runner = make_runner(gguf_models.write(row, checkpoint, tmp_path / "m.gguf"))
    runner.step({0: len(TOKENS)}, [runner.new(0, TOKENS, list(range(8)), SCORED)])
    expected = checkpoint.logprobs(TOKENS)
    ours = torch.empty_like(expected[:-1])
    for scores, entry in zip(ours, runner.results[0][0].prompt_logprobs, strict=True):
        scores[torch.tensor(entry.token_ids[1:])] = torch.tensor(entry.logprobs[1:])
    torch.testing.assert_close(ours, expected[:-1], rtol=0, atol=2e-4)
    assert runner.sequences[0][-1] == int(expected[-1].argmax())


def test_every_architecture_has_a_row() -> None:
    assert {row.split(" ")[0] for row in gguf_models.ROWS} == set(ARCHITECTURES)
