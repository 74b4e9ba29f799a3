"""Whole models through the Triton kernels equal the same through the reference: the worker's path, tokens and logprobs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minivllm import kernels
from minivllm.config.engine_args import EngineArgs
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, SlotResult, StepPlan
from minivllm.worker import worker as worker_module
from minivllm.worker.devices import DEVICES
from minivllm.worker.devices.base import Captured
from minivllm.worker.devices.cpu import CpuDevice
from minivllm.worker.worker import Worker

CONFIG = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "sliding_window": 9,
        "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "deepseek-v2": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "num_key_value_heads": 6,
        "q_lora_rank": None,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 4,
        "v_head_dim": 10,
        "moe_intermediate_size": 24,
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "topk_method": "greedy",
    },
}
WAYS = (
    SamplingParams(temperature=0.0, logprobs=3, prompt_logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1, logprobs=0, repetition_penalty=1.2, presence_penalty=0.4),
    SamplingParams(temperature=1.2, top_k=20, min_p=0.01, seed=2),
)


class Repeating(CpuDevice):
    """Runs decoding steps in padded batches, as graphs do."""

    captures = True

    def capture(self, function: Callable[[], Tensor]) -> Captured:
        result = function()
        return Captured(lambda: result.copy_(function()), result)


def results_of(folder: Path, **options: Any) -> list[SlotResult]:
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "block_size": 4}
    fixed = {"device": "cpu", "load_format": "dummy", "dtype": "float32", "seed": 0, "cpu_threads": 1}
    worker = Worker(EngineArgs(model=str(folder), **fixed, **limits, **options).resolve())
    worker.init_device()
    worker.load_model()
    worker.allocate_kv(60)
    for layer in worker._pool.layers:  # what is not written must not matter
        layer.fill_(torch.nan)
    prompts = [[(7 * i + 31 * slot) % 160 for i in range(length)] for slot, length in enumerate((21, 1, 10))]
    new = [
        NewSlot(s, f"r{s}", prompts[s], len(prompts[s]), 0, [3 * i + s for i in range(10)], WAYS[s], [], []) for s in range(3)
    ]

    def plan(arriving: list[NewSlot], *scheduled: tuple[int, int, int]) -> StepPlan:
        """scheduled: slot, tokens, tokens before them."""
        parts = [ScheduledSlot(s, n, done, [], n + done >= len(prompts[s])) for s, n, done in scheduled]
        return StepPlan(0, [], arriving, parts)

    plans = [
        plan(new[:1], (0, 21, 0)),
        plan(new[1:], (0, 1, 21), (1, 1, 0), (2, 4, 0)),
        plan([], (2, 6, 4), (1, 1, 1)),
        *(plan([], (2, 1, 10 + i), (0, 1, 22 + i), (1, 1, 2 + i)) for i in range(2)),
    ]
    return [result for plan in plans for result in worker.execute(plan).results]


@pytest.mark.parametrize("model", MODELS)
def test_equal_to_reference(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | MODELS[model]))
    monkeypatch.setattr(worker_module, "ops_for", lambda device, use_extension: kernels._load("reference"))
    expected = results_of(tmp_path)
    monkeypatch.setattr(worker_module, "ops_for", lambda device, use_extension: kernels._load("triton"))
    monkeypatch.setitem(DEVICES, "cpu", Repeating)
    actual = results_of(tmp_path, enforce_eager=model == "gemma2")
    assert [r.token_ids for r in actual] == [r.token_ids for r in expected]
    for ours, theirs in zip(logprobs_of(actual), logprobs_of(expected), strict=True):
        assert ours.token_ids == theirs.token_ids and ours.rank == theirs.rank
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-4)


def logprobs_of(results: list[SlotResult]) -> list[Any]:
    return [entry for result in results for entry in (*(result.prompt_logprobs or []), *(result.logprobs or []))]
