"""Logprobs, stages in a whole sampler, and requests that fail alone."""

import pytest
import torch

from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot
from minivllm.worker.sampling.sampler import ALL_FORBIDDEN, NAN_LOGITS
from minivllm.worker.sampling.slot_params import SlotParams

VOCAB = 200


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_the_raw_ones(bench, dtype):
    logits = (torch.randn(4, VOCAB) * 3).to(dtype)
    bench.add(0, SamplingParams(temperature=0.0, logprobs=3))
    bench.add(1, SamplingParams(temperature=0.0))
    bench.add(2, SamplingParams(temperature=1.8, logprobs=0, seed=1, top_k=90))
    bench.add(3, SamplingParams(temperature=0.0, logprobs=-1, allowed_token_ids=[17], presence_penalty=1.0))
    results = bench.sample(logits, [0, 1, 2, 3])
    raw = logits.float().log_softmax(-1)
    assert results[1].logprobs is None
    for row, alternatives in ((0, 3), (2, 0), (3, VOCAB)):
        got = results[row].logprobs
        order = raw[row].sort(descending=True)
        assert got.token_ids[0] == results[row].token
        assert got.logprobs[0] == pytest.approx(raw[row, results[row].token].item(), abs=1e-5)
        assert got.rank == (raw[row] > raw[row, results[row].token]).sum() + 1
        assert len(got.token_ids) == len(got.logprobs) == alternatives + 1
        assert got.logprobs[1:] == pytest.approx(order.values[:alternatives].tolist(), abs=1e-5)
        assert got.logprobs[1:] == pytest.approx(raw[row, got.token_ids[1:]].tolist(), abs=1e-5)
        assert len(set(got.token_ids[1:])) == alternatives
    assert results[3].token == 17


def test_more_alternatives_than_tokens(bench):
    bench.add(0, SamplingParams(temperature=0.0, logprobs=20))
    got = bench.sample(torch.randn(1, 5), [0])[0].logprobs
    assert sorted(got.token_ids[1:]) == [0, 1, 2, 3, 4]


def test_penalties_count_what_was_sampled(bench):
    logits = torch.tensor([[3.0, 2.5, 0.0, -9.0]])
    bench.add(0, SamplingParams(temperature=0.0, presence_penalty=1.0))
    # 3.0 → 2.0 and 2.5 → 1.5 once they are in the output.
    assert [bench.tokens(logits, [0])[0] for _ in range(4)] == [0, 1, 0, 0]
    bench.add(1, SamplingParams(temperature=0.0, frequency_penalty=1.0))
    assert [bench.tokens(logits, [1])[0] for _ in range(5)] == [0, 1, 0, 1, 0]


def test_stages_work_together(bench):
    bench.add(
        0,
        SamplingParams(temperature=0.0, min_tokens=2, logit_bias={0: 50.0}, stop_token_ids=[1]),
        eos=[0],
        bad_words=[[2], [3, 4]],
    )
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.9, 1.0]])
    assert [bench.tokens(logits, [0])[0] for _ in range(3)] == [3, 3, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bad_logits_end_one_request_only(bench, bad, temperature):
    logits = torch.randn(3, VOCAB)
    logits[1, 150] = bad
    for slot in range(3):
        bench.add(slot, SamplingParams(temperature=temperature, seed=slot, logprobs=1, top_p=0.5))
    results = bench.sample(logits, [0, 1, 2])
    assert [r.error for r in results] == [None, NAN_LOGITS, None]
    assert [bench.slots.num_tokens[slot] for slot in range(3)] == [2, 1, 2]
    alone = []
    for slot in (0, 2):
        bench.add(slot, SamplingParams(temperature=temperature, seed=slot, logprobs=1, top_p=0.5))
        alone.append(bench.tokens(logits[slot : slot + 1], [slot])[0])
    assert alone == [results[0].token, results[2].token]


def test_everything_forbidden(bench):
    bench.add(0, SamplingParams(allowed_token_ids=[4]), bad_words=[[4]])
    bench.add(1, SamplingParams(temperature=0.0))
    results = bench.sample(torch.randn(2, VOCAB), [0, 1])
    assert [r.error for r in results] == [ALL_FORBIDDEN, None]


def test_a_server_seed_makes_seedless_requests_repeatable():
    def seeds(server_seed):
        params = SlotParams(4, server_seed)
        for slot in range(4):
            params.add(NewSlot(slot, "r", [1], 1, 0, [], SamplingParams(), [], []))
        return params.seeds.tolist()

    assert seeds(3) == seeds(3)
    assert seeds(3) != seeds(4)
    assert seeds(None) != seeds(None)
    assert len(set(seeds(None))) == 4


def test_padding_is_never_chosen_nor_among_the_alternatives(bench):
    padded = type(bench)(bench.extension, vocab_size=VOCAB - 8)
    logits = torch.randn(4, VOCAB)
    logits[:, VOCAB - 8 :] = 50.0
    padded.add(0, SamplingParams(temperature=0.0, logprobs=-1))
    padded.add(1, SamplingParams(temperature=1.9, logprobs=3))
    padded.add(2, SamplingParams(top_k=40, presence_penalty=0.1))
    padded.add(3, SamplingParams(top_p=0.99, logit_bias={VOCAB - 1: 100.0, 5: 90.0}))
    raw = logits[:, : VOCAB - 8].log_softmax(-1)
    for _ in range(20):
        results = padded.sample(logits, [0, 1, 2, 3])
        assert all(0 <= r.token < VOCAB - 8 for r in results)
        assert results[0].token == raw[0].argmax() and results[3].token == 5
        for row, count in ((0, VOCAB - 8), (1, 3)):
            got = results[row].logprobs
            assert got.logprobs == pytest.approx(raw[row, got.token_ids].tolist(), abs=1e-5)
            assert got.logprobs[1:] == pytest.approx(raw[row].topk(count).values.tolist(), abs=1e-5)
