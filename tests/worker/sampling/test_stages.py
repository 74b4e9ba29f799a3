"""What each stage does to the logits, against plain sums done by hand or a reference loop."""

import pytest
import torch

from minivllm.kernels.reference import sampling as reference
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot
from minivllm.worker.sampling.bans import AllowedTokens, BadWords, MinTokens
from minivllm.worker.sampling.logit_bias import LogitBias
from minivllm.worker.sampling.penalties import Penalties
from minivllm.worker.sampling.stage import SamplingBatch

INF = float("inf")


def apply(stage_type, params: SamplingParams, logits, prompt=(), output=(), eos=(), bad_words=()):
    """The changed row of a slot, between two neighbours that use nothing."""
    stage = stage_type()
    stage.add(NewSlot(4, "r", [*prompt, *output], len(prompt), 0, [], params, list(eos), [list(w) for w in bad_words]))
    row = torch.tensor(logits, dtype=torch.float32)
    batch_logits = torch.stack((row, row, row))
    stage.apply(SamplingBatch(reference, batch_logits, [3, 4, 5], [torch.tensor(output, dtype=torch.int64).numpy()] * 3))
    assert torch.equal(batch_logits[0], row) and torch.equal(batch_logits[2], row)
    return batch_logits[1].tolist()


def test_penalties_by_hand():
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    got = apply(Penalties, params, [1.0, -1.0, 4.0, -4.0, 0.0], prompt=[0, 1, 1], output=[2, 3, 3])
    # In the prompt only: repetition, once however often. In the output: repetition, then 0.5 + 0.25 a time.
    assert got == pytest.approx([0.5, -2.0, 2.0 - 0.75, -8.0 - 1.0, 0.0])


def test_presence_and_frequency_do_not_count_the_prompt():
    params = SamplingParams(presence_penalty=2.0, frequency_penalty=1.1)
    got = apply(Penalties, params, [1.0, 1.0, 1.0, 1.0], prompt=[0, 0, 1], output=[1, 1, 2])
    assert got == pytest.approx([1.0, 1.0 - 2.0 - 2.2, 1.0 - 2.0 - 1.1, 1.0])


def test_negative_penalties_and_repetition_below_one_reward():
    params = SamplingParams(repetition_penalty=0.5, frequency_penalty=-2.0)
    assert apply(Penalties, params, [1.0, -1.0], output=[0, 1]) == pytest.approx([4.0, 1.5])


def test_penalties_against_a_reference_over_many_tokens():
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(500, (300,), generator=generator).tolist()
    output = torch.randint(500, (400,), generator=generator).tolist()
    logits = torch.randn(500, generator=generator)
    params = SamplingParams(repetition_penalty=1.3, presence_penalty=-0.7, frequency_penalty=0.1)
    stage = Penalties()
    stage.add(NewSlot(0, "r", [*prompt, *output[:150]], 300, 0, [], params, [], []))
    for token in output[150:]:
        stage.accept(0, token)
    got = logits.clone()[None]
    stage.apply(SamplingBatch(reference, got, [0], [torch.tensor(output).numpy()]))
    expected = logits.tolist()
    for token in range(500):
        if token in prompt or token in output:
            expected[token] = expected[token] / 1.3 if expected[token] > 0 else expected[token] * 1.3
        if token in output:
            expected[token] -= 0.1 * output.count(token) - 0.7
    assert got[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_logit_bias():
    assert apply(LogitBias, SamplingParams(logit_bias={0: 3.0, 2: -100.0}), [1.0, 2.0, 3.0]) == [4.0, 2.0, -97.0]


def test_allowed_tokens():
    assert apply(AllowedTokens, SamplingParams(allowed_token_ids=[2, 0, 2]), [1.0, 2.0, 3.0, 4.0]) == [1.0, -INF, 3.0, -INF]


@pytest.mark.parametrize(("output", "banned"), [([], True), ([7, 8], True), ([7, 8, 9], False)])
def test_min_tokens_bans_every_ending(output, banned):
    got = apply(MinTokens, SamplingParams(min_tokens=3, stop_token_ids=[2], max_tokens=9), [1.0] * 4, output=output, eos=[0])
    assert got == ([-INF, 1.0, -INF, 1.0] if banned else [1.0] * 4)


@pytest.mark.parametrize(
    ("output", "banned"),
    [([], {3}), ([1], {3, 2}), ([0, 1], {3, 2, 4}), ([1, 0], {3}), ([0], {3})],
)
def test_bad_words_by_suffix(output, banned):
    words = [[3], [1, 2], [0, 1, 4], []]
    got = apply(BadWords, SamplingParams(), [1.0] * 5, prompt=[0, 1], output=output, bad_words=words)
    assert {token for token, logit in enumerate(got) if logit == -INF} == banned


def test_a_removed_slot_leaves_no_trace():
    stage = LogitBias()
    stage.add(NewSlot(0, "r", [1], 1, 0, [], SamplingParams(logit_bias={0: 5.0}), [], []))
    stage.remove(0)
    logits = torch.zeros(1, 2)
    stage.apply(SamplingBatch(reference, logits, [0], [torch.tensor([]).numpy()]))
    assert logits.tolist() == [[0.0, 0.0]]
