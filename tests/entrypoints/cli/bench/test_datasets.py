"""Prompts of each kind: lengths, sharing, repeatability, and what is refused."""

import argparse
import json
from collections import Counter
from pathlib import Path

import pytest

from minivllm.entrypoints.cli.bench.datasets import Sample, add_dataset_options, make_samples, usable_ids
from minivllm.errors import ConfigError
from minivllm.text.tokenizer import load_tokenizer


def samples(model: Path, *flags: str, seed: int = 0) -> list[Sample]:
    parser = argparse.ArgumentParser()
    add_dataset_options(parser)
    return make_samples(parser.parse_args(flags), load_tokenizer(model), seed)


def test_random(model: Path) -> None:
    flags = ("--num-prompts", "200", "--random-input-len", "20", "--random-output-len", "10", "--random-prefix-len", "5")
    found = samples(model, *flags)
    assert {(len(s.prompt), s.prompt_len, s.output_len) for s in found} == {(25, 25, 10)}
    assert len({tuple(s.prompt[:5]) for s in found}) == 1 and len({tuple(s.prompt) for s in found}) == 200
    assert usable_ids(load_tokenizer(model)) == list(range(60))  # 60 is a special token
    assert {token for s in found for token in s.prompt} == set(range(60))
    assert found == samples(model, *flags) != samples(model, *flags, seed=1)
    varied = samples(model, *flags, "--random-range-ratio", "0.5")
    assert {s.prompt_len for s in varied} == set(range(15, 36)) and {s.output_len for s in varied} == set(range(5, 16))


def test_prefix_repetition(model: Path) -> None:
    flags = ["--dataset-name", "prefix_repetition", "--num-prompts", "10"]
    for name, value in (("prefix-len", 8), ("suffix-len", 4), ("num-prefixes", 3), ("output-len", 7)):
        flags += [f"--prefix-repetition-{name}", str(value)]
    found = samples(model, *flags)
    assert {(s.prompt_len, s.output_len) for s in found} == {(12, 7)}
    assert sorted(Counter(tuple(s.prompt[:8]) for s in found).values()) == [3, 3, 4]


def test_sharegpt(model: Path, tmp_path: Path) -> None:
    def turns(*lengths: int) -> dict[str, object]:
        return {"conversations": [{"from": "x", "value": " ".join(["word1"] * n)} for n in lengths]}

    file = tmp_path / "sharegpt.json"
    # Too short a prompt, too long a prompt, too short an answer, too long together, no answer; two that fit.
    file.write_text(
        json.dumps([turns(3, 9), turns(1025, 9), turns(9, 3), turns(9, 2040), turns(9), turns(5, 6), turns(7, 8, 9)])
    )
    flags = ("--dataset-name", "sharegpt", "--dataset-path", str(file), "--num-prompts", "4")
    assert sorted((s.prompt_len, s.output_len) for s in samples(model, *flags)) == [(5, 6), (5, 6), (7, 8), (7, 8)]
    fixed = samples(model, *flags, "--sharegpt-output-len", "11")
    assert sorted((s.prompt_len, s.output_len) for s in fixed) == [(5, 11), (7, 11), (9, 11), (9, 11)]
    file.write_text("[{}]")
    with pytest.raises(ConfigError, match="is not of the form"):
        samples(model, *flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dataset-name", "sharegpt"], "needs --dataset-path FILE"),
        (["--dataset-name", "sharegpt", "--dataset-path", "/none"], "cannot read --dataset-path /none: No such file"),
        (["--random-range-ratio", "1"], "must be 0 or more and less than 1, got 1."),
    ],
)
def test_refusals(model: Path, flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        samples(model, *flags)
