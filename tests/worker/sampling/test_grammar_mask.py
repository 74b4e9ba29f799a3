"""Masks of grammars go with everything else that chooses a token."""

import math

import torch

from minivllm.messages.sampling_params import SamplingParams
from minivllm.worker.sampling.sampler import ALL_FORBIDDEN


def test_only_allowed_tokens_come_and_the_others_sample_on(bench):
    torch.manual_seed(3)
    logits = torch.randn(4, 200, dtype=torch.bfloat16)
    ways = [SamplingParams(temperature=0), SamplingParams(top_k=3), SamplingParams(top_p=0.5), SamplingParams(temperature=2.0)]
    for slot, params in enumerate(ways):
        params.seed = slot
        bench.add(slot, params)
    allowed = {0: [5, 199], 1: [64, 65, 130], 2: list(range(100, 140)), 3: [7]}
    free = bench.tokens(logits, [0, 1, 2, 3])
    for _ in range(20):
        tokens = bench.tokens(logits, [0, 1, 2, 3], allowed)
        assert all(token in allowed[slot] for slot, token in enumerate(tokens))
    assert tokens[0] == max(allowed[0], key=lambda token: logits[0, token])
    for slot, params in enumerate(ways):
        bench.add(slot, params)
    masked = bench.tokens(logits, [0, 1, 2, 3], {1: [64]})
    assert masked[1] == 64 and [masked[slot] for slot in (0, 2, 3)] == [free[slot] for slot in (0, 2, 3)]


def test_masks_go_with_stages_seeds_and_logprobs(bench):
    logits = torch.zeros(2, 100)
    logits[:, 3] = 5.0
    bench.add(0, SamplingParams(temperature=0, logprobs=1, logit_bias={4: 1.0}, presence_penalty=2.0), output=[6])
    bench.add(1, SamplingParams(temperature=0, min_tokens=9), eos=[5])
    first, second = bench.sample(logits, [0, 1], {0: [4, 6, 7], 1: [5, 8]})
    assert (first.token, second.token) == (4, 8)
    # Logprobs are the model's own: the best token is named, though it was not allowed.
    assert first.logprobs.token_ids == [4, 3]
    assert math.isclose(first.logprobs.logprobs[1], 5 - math.log(99 + math.exp(5)), abs_tol=1e-4)


def test_seeds_draw_from_what_is_allowed(bench):
    """The distribution is that of the allowed tokens by themselves."""
    logits = torch.log(torch.tensor([[0.5, 0.2, 0.2, 0.1]]))
    bench.add(0, SamplingParams(seed=1))
    tokens = [bench.tokens(logits, [0], {0: [1, 3]})[0] for _ in range(200)]
    assert set(tokens) == {1, 3} and 110 < tokens.count(1) < 155


def test_nothing_left_is_the_users_error(bench):
    bench.add(0, SamplingParams(allowed_token_ids=[1, 2]))
    [result] = bench.sample(torch.zeros(1, 50), [0], {0: [3]})
    assert (result.error, result.error_param) == (ALL_FORBIDDEN, "allowed_token_ids")


def test_a_mask_shorter_than_the_vocabulary_forbids_its_padding(bench):
    bench.vocab_size = 100
    bench.__post_init__()
    bench.add(0, SamplingParams(temperature=0))
    logits = torch.arange(128.0)[None]
    assert bench.tokens(logits, [0], {0: [99, 120]}) == [99]
