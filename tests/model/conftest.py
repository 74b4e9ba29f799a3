"""Tiny random checkpoints of every family, written by transformers, and a worker that runs hand-made plans on them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from minivllm.config.engine_args import EngineArgs
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, SlotResult, StepPlan
from minivllm.worker.worker import Worker

BLOCK = 4
_COMMON = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1000.0, "rope_type": kind, **values}}


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 6, "max_position_embeddings": 96}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 16, "hidden_act": "gelu"}),
    "llama3": (
        "Llama",
        _rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
        | {"max_position_embeddings": 128},
    ),
    "linear": ("Llama", _rope("linear", factor=2.0)),
    "dynamic": ("Llama", _rope("dynamic", factor=2.0)),
    "yarn": ("Llama", _rope("yarn", factor=2.0, original_max_position_embeddings=32, beta_fast=4.0)),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "mistral-full": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-untied": ("Qwen2", {}),
}


@dataclass
class Checkpoint:
    folder: Path
    reference: transformers.PreTrainedModel  # in fp32

    def logprobs(self, token_ids: list[int]) -> torch.Tensor:
        """fp32 [tokens, vocab_size] from transformers: row i is about the token after i."""
        with torch.inference_mode():
            return self.reference(torch.tensor([token_ids])).logits[0].log_softmax(-1)

    def greedy(self, token_ids: list[int], count: int) -> list[int]:
        known = list(token_ids)
        for _ in range(count):
            known.append(int(self.logprobs(known)[-1].argmax()))
        return known[len(token_ids) :]


@dataclass
class Runner:
    """A worker and a scheduler for the poor: every sequence gets what the test says."""

    worker: Worker
    num_blocks: int
    sequences: dict[int, list[int]] = field(default_factory=dict)  # slot → known tokens
    computed: dict[int, int] = field(default_factory=dict)
    results: dict[int, list[SlotResult]] = field(default_factory=dict)

    def new(self, slot: int, tokens: list[int], blocks: list[int], params: SamplingParams) -> NewSlot:
        self.sequences[slot], self.computed[slot], self.results[slot] = list(tokens), 0, []
        return NewSlot(slot, f"r{slot}", list(tokens), len(tokens), 0, blocks, params, [], [])

    def step(self, counts: dict[int, int], new: list[NewSlot] | None = None, freed: list[int] | None = None) -> None:
        """Compute so many tokens of each slot."""
        scheduled = []
        for slot, count in counts.items():
            done = self.computed[slot]
            scheduled.append(ScheduledSlot(slot, count, done, [], done + count == len(self.sequences[slot])))
            self.computed[slot] = done + count
        result = self.worker.execute(StepPlan(0, freed or [], new or [], scheduled))
        assert [r.slot for r in result.results] == list(counts)
        for one in result.results:
            assert one.error is None
            self.sequences[one.slot] += one.token_ids
            self.results[one.slot].append(one)


def save(name: str, folder: Path, **how: Any) -> Checkpoint:
    family, changes = FAMILIES[name]
    torch.manual_seed(sum(map(ord, name)))
    config = getattr(transformers, f"{family}Config")(**{**_COMMON, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_(0, 0.2)
    model.save_pretrained(folder, **how)
    return Checkpoint(folder, model)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Checkpoint]:
    return lambda name, **how: save(name, tmp_path / name, **how)


@pytest.fixture
def make_runner() -> Callable[..., Runner]:
    def make(folder: Path, num_blocks: int = 64, **options: Any) -> Runner:
        worker = load(folder, **options)
        worker.allocate_kv(num_blocks)
        for layer in worker._pool.layers:  # what is not written must not matter
            layer.fill_(float("nan"))
        return Runner(worker, num_blocks)

    return make


@pytest.fixture
def load_worker() -> Callable[..., Worker]:
    return load


def load(folder: Path, **options: Any) -> Worker:
    args = {"dtype": "float32", "block_size": BLOCK, "cpu_threads": 1, "max_num_seqs": 8, **options}
    worker = Worker(EngineArgs(model=str(folder), **args).resolve())
    worker.init_device()
    worker.load_model()
    return worker
