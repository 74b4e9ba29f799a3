"""How tokens are chosen from changed logits: argmax, top-k, top-p, min-p, temperature and seeds."""

import math

import numpy as np
import pytest
import torch

from minivllm.kernels import ops_for
from minivllm.kernels.reference.sampling import _draw, _uniforms
from minivllm.messages.sampling_params import SamplingParams

VOCAB = 1000  # not a multiple of the block


def reference_probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """One row by a full sort, in fp64: temperature, min-p, top-k, top-p, each on what the one before left."""
    scaled = logits.double() / params.temperature
    probabilities = scaled.softmax(-1)
    scaled[probabilities < params.min_p * probabilities.max()] = -math.inf
    values, order = scaled.sort(descending=True, stable=True)
    if params.top_k:
        values[params.top_k :] = -math.inf
    ranked = values.softmax(-1)
    ranked[ranked.cumsum(-1) - ranked >= params.top_p] = 0
    return torch.zeros_like(ranked).scatter(0, order, ranked / ranked.sum())


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Standard deviations by which the statistic is above its mean; columns that are rarely expected are joined."""
    total = counts.sum()
    often = probabilities * total >= 5
    observed = torch.cat((counts[often], counts[~often].sum()[None])).double()
    expected = torch.cat((probabilities[often], probabilities[~often].sum()[None])) * total
    kept = expected > 0
    statistic = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = int(kept.sum()) - 1
    return float(statistic - freedom) / math.sqrt(2 * max(freedom, 1))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 1.7},
        {"top_k": 1},
        {"top_k": 5},
        {"top_k": 200, "temperature": 2.0},
        {"top_k": 5000},
        {"top_p": 0.9},
        {"top_p": 0.3},
        {"top_p": 1e-6},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"min_p": 0.02, "top_p": 0.8, "temperature": 1.5},
        {"top_k": 20, "top_p": 0.7},
        {"top_k": 20, "top_p": 0.7, "min_p": 0.2},
    ],
    ids=str,
)
def test_distribution(bench, changes):
    params = SamplingParams(**changes)
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(5)) * 2
    expected = reference_probabilities(logits, params)
    counts = torch.zeros(VOCAB)
    for slot in range(16):
        bench.add(slot, params)
    for _ in range(250):
        tokens = bench.tokens(logits.expand(16, -1), list(range(16)))
        counts += torch.bincount(torch.tensor(tokens), minlength=VOCAB)
    assert counts[expected == 0].sum() == 0
    assert chi_square(counts, expected) < 5


def test_ties_at_the_border_of_top_p_are_kept_together(bench):
    logits = torch.full((1, 70), -20.0)
    logits[0, [3, 66, 67]] = 1.0
    bench.add(0, SamplingParams(top_p=0.5))
    assert {bench.tokens(logits, [0])[0] for _ in range(60)} == {3, 66, 67}


def test_a_mixed_batch_is_as_each_alone(bench):
    logits = torch.randn(8, VOCAB) * 3
    kinds = [
        SamplingParams(temperature=0.0),
        SamplingParams(seed=1),
        SamplingParams(seed=2, top_k=3),
        SamplingParams(seed=3, top_p=0.5),
        SamplingParams(temperature=0.0, repetition_penalty=1.4),
        SamplingParams(seed=4, top_k=100, top_p=0.9),
        SamplingParams(seed=5, min_p=0.1, logit_bias={4: 2.0}),
        SamplingParams(seed=6, temperature=1.6, top_p=0.95, presence_penalty=1.0),
    ]
    for slot, params in enumerate(kinds):
        bench.add(slot, params)
    together = [bench.tokens(logits, list(range(8))) for _ in range(6)]
    for slot, params in enumerate(kinds):
        bench.add(15 - slot, params)
        alone = [bench.tokens(logits[slot : slot + 1], [15 - slot])[0] for _ in range(6)]
        assert alone == [step[slot] for step in together]


def test_same_seed_same_text_different_seed_different_text(bench):
    logits = torch.zeros(1, VOCAB)

    def text(slot: int, seed: int | None) -> list[int]:
        bench.add(slot, SamplingParams(seed=seed))
        return [bench.tokens(logits, [slot])[0] for _ in range(8)]

    assert text(0, 7) == text(9, 7)
    assert text(0, 7) != text(0, 8)
    assert text(0, -(2**63)) != text(0, 2**63 - 1)
    assert text(0, None) != text(0, None)
    assert len(set(text(0, 7))) > 4  # positions differ


def test_after_a_preemption_the_seed_goes_on_at_its_position(bench):
    logits = torch.zeros(1, VOCAB)
    bench.add(0, SamplingParams(seed=3))
    tokens = [bench.tokens(logits, [0])[0] for _ in range(5)]
    bench.add(2, SamplingParams(seed=3), output=tokens[:3])
    assert [bench.tokens(logits, [2])[0] for _ in range(2)] == tokens[3:]


def test_greedy_takes_the_lowest_of_equal_ones(bench):
    logits = torch.zeros(2, VOCAB)
    logits[0, [999, 130, 131]] = 2.0
    bench.add(0, SamplingParams(temperature=0.0))
    bench.add(1, SamplingParams(temperature=0.0))
    assert bench.tokens(logits.bfloat16(), [0, 1]) == [130, 0]


@pytest.fixture(params=[True, False], ids=["extension", "reference"])
def op(request):
    return ops_for("cpu", use_extension=request.param).sampling


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 640, 1000])
def test_argmax_and_topk_are_exact(op, vocab):
    logits = torch.randn(20, vocab).bfloat16()
    greedy, seeds = torch.tensor([[0.0, 0.0, 1.0, 0.0]] * 20).double(), torch.zeros(20, 2, dtype=torch.int64)
    tokens = op.choose(logits, None, greedy, seeds)
    assert torch.equal(tokens, logits.float().argmax(-1))
    for k in {1, min(3, vocab), min(9, vocab), vocab}:
        values, columns, ranks = op.logprobs(logits, None, tokens, k, vocab)
        raw = logits.float().log_softmax(-1)
        torch.testing.assert_close(values[:, 1:], raw.topk(k).values, atol=1e-6, rtol=0)
        assert torch.equal(logits.gather(1, columns[:, 1:]), logits.topk(k).values)
        assert torch.equal(columns[:, 0], tokens) and (ranks == 1).all()
        assert all(len(set(row)) == k for row in columns[:, 1:].tolist())


def weights_with_holes() -> torch.Tensor:
    weights = torch.rand(50, 3 * 64)
    weights[:, ::3] = 0
    weights[:, :70] = 0  # empty first block
    return weights


def assert_is_inverse(drawn: torch.Tensor, weights: torch.Tensor, uniform: torch.Tensor) -> None:
    cumulative = weights.double().cumsum(-1)
    target = uniform * cumulative[:, -1]
    assert torch.equal(drawn, (cumulative <= target[:, None]).sum(-1))
    assert (weights.gather(1, drawn[:, None]) > 0).all()


def test_draw_is_the_inverse_of_the_cumulative_sum():
    weights, uniform = weights_with_holes(), torch.rand(50, dtype=torch.float64)
    uniform[0], uniform[1] = 0.0, 1 - 2.0**-52
    assert_is_inverse(_draw(weights, uniform), weights, uniform)


def test_choice_from_all_is_the_inverse_of_the_cumulative_sum(op):
    weights, seeds = weights_with_holes(), torch.randint(2**63 - 1, (50, 2))
    whole = torch.tensor([[1.0, 0.0, 1.0, 0.0]] * 50).double()
    assert_is_inverse(op.choose(weights.log(), None, whole, seeds), weights, _uniforms(seeds, 0))


def test_uniforms_are_uniform_and_differ_by_each_argument():
    def uniforms(seeds: np.ndarray, positions: np.ndarray, attempt: int) -> np.ndarray:
        return _uniforms(torch.from_numpy(np.stack((seeds, positions), axis=1)), attempt).numpy()

    seeds, positions = np.arange(4000), np.arange(4000)
    for numbers in (uniforms(seeds, positions * 0, 0), uniforms(seeds * 0, positions, 0), uniforms(seeds, positions, 3)):
        assert ((numbers >= 0) & (numbers < 1)).all()
        assert len(np.unique(numbers)) == 4000
        assert abs(numbers.mean() - 0.5) < 0.02
        assert abs(np.histogram(numbers, 20, (0, 1))[0] - 200).max() < 80
    assert abs(np.corrcoef(uniforms(seeds, positions * 0, 0), uniforms(seeds, positions * 0, 1))[0, 1]) < 0.06
