"""A whole worker on a tiny dummy model: its figures, warm-up, and requests that fail alone."""

import json
import math
from pathlib import Path

import pytest
import torch

from minivllm.config.engine_args import EngineArgs
from minivllm.errors import ConfigError
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, StepPlan
from minivllm.worker.sampling.sampler import NAN_LOGITS
from minivllm.worker.warmup import timing_plans, warmup_plans
from minivllm.worker.worker import Worker

CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 200,
    "sliding_window": 20,
    "torch_dtype": "bfloat16",
}


NUM_TOKENS = CONFIG["vocab_size"] - 8  # of the tokenizer: the model's head is padded


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {f"t{i}": i for i in range(NUM_TOKENS)}}}))
    config = EngineArgs(
        model=str(tmp_path), load_format="dummy", cpu_threads=1, block_size=8, kv_cache_memory_bytes=1 << 20, max_num_seqs=4
    ).resolve()
    worker = Worker(config)
    before = torch.get_num_threads()
    worker.init_device()
    worker.load_model()
    yield worker
    torch.set_num_threads(before)


def new_slot(slot: int, tokens: list[int], params: SamplingParams) -> NewSlot:
    return NewSlot(slot, f"r{slot}", tokens, len(tokens), 0, [2 * slot, 2 * slot + 1], params, [], [])


def test_kv_figures(worker):
    spec = worker.kv_spec()
    # 3 layers, keys and values, 8 tokens, 2 heads of 8 dimensions, 2 bytes each.
    assert (spec.block_size, spec.bytes_per_block, spec.sliding_window) == (8, 3 * 2 * 8 * 2 * 8 * 2, 20)
    assert worker.available_kv_bytes() == 1 << 20


def test_unused_cache_takes_no_memory(worker):
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    worker.allocate_kv((256 << 20) // worker.kv_spec().bytes_per_block)
    assert resident() - before < 16 << 20


def test_a_cache_beyond_all_memory(worker):
    with pytest.raises(ConfigError, match="cannot allocate a KV cache of"):
        worker.allocate_kv(1 << 40)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 64])
def test_warm_up_leaves_every_slot_free(worker, num_blocks):
    worker.allocate_kv(num_blocks)
    worker.warm_up()
    assert worker.time_prefill(min(8 * num_blocks, 128)) > 0
    assert worker._runner._slots.requests == {}


def test_warm_up_plans_stay_inside_the_cache():
    for num_slots, num_blocks, block_size, max_model_len in ((1, 1, 1, 1), (1, 1, 2, 64), (8, 5, 4, 64), (2, 99, 16, 3)):
        for plan in warmup_plans(num_slots, num_blocks, block_size, max_model_len):
            blocks = [block for new in plan.new for block in new.block_ids]
            assert len(set(blocks)) == len(blocks)
            assert all(block < num_blocks for block in blocks)
            assert all(new.slot < num_slots and len(new.token_ids) < max_model_len for new in plan.new)


def test_timed_prompts_stay_inside_the_cache():
    compute, free = timing_plans(64, 16)
    assert (len(compute.new[0].token_ids), compute.num_tokens, free.freed_slots) == (64, 64, [0])
    assert compute.new[0].block_ids == [0, 1, 2, 3]


def test_a_request_with_nan_in_its_cache_fails_alone(worker):
    worker.allocate_kv(8)
    greedy = SamplingParams(temperature=0.0)
    plan = StepPlan(
        7, [], [new_slot(0, [1, 2, 3], greedy), new_slot(1, [4, 5], greedy)],
        [ScheduledSlot(0, 3, 0, [], True), ScheduledSlot(1, 2, 0, [], True)],
    )  # fmt: skip
    first = worker.execute(plan)
    assert first.step_id == 7
    for layer in worker._pool.layers:
        layer[:, 0] = float("nan")  # the first block of slot 0
    second = worker.execute(StepPlan(8, [], [], [ScheduledSlot(0, 1, 3, [], True), ScheduledSlot(1, 1, 2, [], True)]))
    assert [r.error for r in second.results] == [NAN_LOGITS, None]
    assert [len(r.token_ids) for r in second.results] == [0, 1]


def test_nan_in_prompt_logprobs_fails_alone(worker):
    worker.allocate_kv(8)
    worker._runner._model.model.embed_tokens.weight[9] = float("nan")
    params = SamplingParams(temperature=0.0, prompt_logprobs=1)
    plan = StepPlan(
        0, [], [new_slot(0, [1, 9, 3, 4], params), new_slot(1, [4, 5, 6], params)],
        [ScheduledSlot(0, 3, 0, [], False), ScheduledSlot(1, 2, 0, [], False)],
    )  # fmt: skip
    results = worker.execute(plan).results
    assert [r.error for r in results] == [NAN_LOGITS, None]
    assert [len(r.prompt_logprobs or []) for r in results] == [0, 2]


def test_padding_of_the_vocabulary_is_not_seen(worker, monkeypatch):
    worker.allocate_kv(8)
    model = worker._runner._model
    compute = model.compute_logits

    def with_large_padding(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute(hidden)
        logits[:, NUM_TOKENS:] = 60.0
        return logits

    monkeypatch.setattr(model, "compute_logits", with_large_padding)
    ways = (
        SamplingParams(temperature=0.0, logprobs=4),
        SamplingParams(temperature=2.0, logprobs=-1, prompt_logprobs=2),
        SamplingParams(top_k=95, top_p=0.99),
        SamplingParams(frequency_penalty=1.0, logit_bias={NUM_TOKENS: 9.0}),
    )
    new = [new_slot(slot, [1, NUM_TOKENS + slot, 3], params) for slot, params in enumerate(ways)]
    results = worker.execute(StepPlan(0, [], new, [ScheduledSlot(slot, 3, 0, [], True) for slot in range(4)])).results
    for step in range(10):
        assert all(result.error is None and result.token_ids[0] < NUM_TOKENS for result in results)
        assert len(results[0].logprobs[0].token_ids) == 5 and len(results[1].logprobs[0].token_ids) == NUM_TOKENS + 1
        assert all(token < NUM_TOKENS for result in results[:2] for token in result.logprobs[0].token_ids)
        assert sum(math.exp(p) for p in results[1].logprobs[0].logprobs[1:]) == pytest.approx(1, abs=1e-4)
        if step == 0:
            first, second = results[1].prompt_logprobs
            assert first.token_ids[0] == NUM_TOKENS + 1  # a prompt may hold what is never chosen
            assert all(token < NUM_TOKENS for token in (*first.token_ids[1:], *second.token_ids))
        scheduled = [ScheduledSlot(slot, 1, 3 + step, [], True) for slot in range(4)]
        results = worker.execute(StepPlan(step + 1, [], [], scheduled)).results


def test_a_plan_that_only_frees(worker):
    worker.allocate_kv(8)
    assert worker.execute(StepPlan(3, [0, 1], [], [])).results == []
    worker.check_health()
    worker.shutdown()
    worker.shutdown()
