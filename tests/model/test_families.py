"""Every family against transformers: logprobs and greedy tokens in fp32, however the tokens are divided into steps."""

import random

import pytest
import torch
from model.conftest import as_rows
from model.families import FAMILIES

from minivllm.messages.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, logprobs=-1, prompt_logprobs=-1, max_tokens=12)
SHORT = SamplingParams(temperature=0.0, logprobs=-1, max_tokens=12)
NEW_TOKENS = 8


def prompt_of(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 160) for _ in range(length)]


def check(checkpoint, runner, slot: int, prompt: list[int]) -> None:
    """Tokens of the slot are transformers' greedy ones, and so is the distribution at every position that was asked for."""
    tokens = runner.sequences[slot]
    expected = checkpoint.logprobs(tokens)
    assert tokens[len(prompt) :] == expected.argmax(-1)[len(prompt) - 1 : -1].tolist()
    prompt_entries = [e for r in runner.results[slot] for e in r.prompt_logprobs or []]
    entries = [e for r in runner.results[slot] for e in r.logprobs or []]
    assert [e.token_ids[0] for e in prompt_entries] == (prompt[1:] if prompt_entries else [])
    assert [e.token_ids[0] for e in entries] == tokens[len(prompt) :]
    ours = as_rows(prompt_entries + entries)
    torch.testing.assert_close(ours, expected[len(tokens) - 1 - len(ours) : -1], atol=2e-4, rtol=0)
    assert all(e.rank == 1 for e in entries)


@pytest.mark.parametrize("family", FAMILIES)
def test_alone_batched_chunked_and_with_shuffled_and_shared_blocks(family, saved, make_runner):
    checkpoint = saved(family)
    runner = make_runner(checkpoint.folder, num_blocks=64, max_model_len=64)
    blocks = list(range(64))
    random.Random(1).shuffle(blocks)
    prompts = [prompt_of(length, length) for length in (1, 21, 10, 34)]
    slots = [5, 0, 3, 1]  # in no order
    new = [
        runner.new(slot, p, blocks[i * 12 : i * 12 + 12], GREEDY)
        for i, (slot, p) in enumerate(zip(slots, prompts, strict=True))
    ]

    runner.step({5: 1, 0: 21}, new[:2])  # two whole prompts
    runner.step({0: 1, 3: 4, 5: 1, 1: 9}, new[2:])  # decode beside first chunks
    runner.step({3: 6, 5: 1, 1: 24})
    runner.step({1: 1, 3: 1})
    slots.append(2)
    prompts.append(prompts[3][:20] + prompt_of(3, 5))  # with the first five blocks of another request
    runner.step({1: 1, 2: 3}, [runner.new(2, prompts[4], blocks[36:41] + blocks[48:53], SHORT, computed=20)])
    for _ in range(NEW_TOKENS):
        runner.step(dict.fromkeys((1, 5, 0, 3, 2), 1))
    for slot, prompt in zip(slots, prompts, strict=True):
        check(checkpoint, runner, slot, prompt)


def test_dynamic_scaling_is_that_of_the_longest_sequence(saved, make_runner):
    checkpoint = saved("dynamic")
    runner = make_runner(checkpoint.folder, max_model_len=100)  # 64 without scaling
    prompt = prompt_of(100, 6)
    torch.testing.assert_close(runner.score(prompt), checkpoint.logprobs(prompt)[:99], atol=2e-4, rtol=0)


def test_a_slot_that_is_used_again_remembers_nothing(saved, make_runner):
    checkpoint = saved("llama2")
    runner = make_runner(checkpoint.folder)
    first, second = prompt_of(30, 1), prompt_of(5, 2)
    runner.step({2: 30}, [runner.new(2, first, list(range(10)), GREEDY)])
    check(checkpoint, runner, 2, first)
    runner.step({2: 5}, [runner.new(2, second, list(range(10)), GREEDY)], freed=[2])
    for _ in range(3):
        runner.step({2: 1})
    check(checkpoint, runner, 2, second)


def test_a_preempted_request_goes_on_where_it_was(saved, make_runner):
    checkpoint = saved("llama2")
    runner = make_runner(checkpoint.folder)
    prompt = prompt_of(9, 3)
    runner.step({0: 9}, [runner.new(0, prompt, [4, 5, 6, 7], GREEDY)])
    runner.step({0: 1})
    known = runner.sequences[0]
    again = runner.new(1, known, [20, 21, 22, 23], GREEDY)
    again.num_prompt_tokens = 9
    again.num_prompt_logprobs_done = 8
    runner.step({1: len(known)}, [again], freed=[0])
    runner.step({1: 1})
    assert runner.sequences[1][9:] == checkpoint.greedy(prompt, 4)
    assert runner.results[1][0].prompt_logprobs is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_close(dtype, make_checkpoint, make_runner):
    checkpoint = make_checkpoint("llama-tied")
    runner = make_runner(checkpoint.folder, dtype=dtype)
    prompt = prompt_of(20, 4)
    ours = runner.score(prompt)
    half = checkpoint.reference.to(getattr(torch, dtype))
    with torch.inference_mode():
        theirs = half(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    exact = checkpoint.reference.float()(torch.tensor([prompt])).logits[0].log_softmax(-1)
    # No further from the exact values than transformers in the same type is, give or take.
    assert (ours - exact[:19]).abs().mean() < 1.5 * (theirs[:19] - exact[:19]).abs().mean() + 1e-3


def test_bfloat16_cache_under_a_float32_model(saved, make_runner):
    checkpoint = saved("llama2")
    runner = make_runner(checkpoint.folder, kv_cache_dtype="bfloat16")
    prompt = prompt_of(20, 5)
    difference = (runner.score(prompt) - checkpoint.logprobs(prompt)[:19]).abs().mean()
    assert 0 < difference < 0.05
