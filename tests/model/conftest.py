"""Tiny random checkpoints of every family, written by transformers, and a worker that runs hand-made plans on them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model.families import FAMILIES

from minivllm.config.engine_args import EngineArgs
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, SlotResult, StepPlan, TokenLogprobs
from minivllm.worker.worker import Worker

BLOCK = 4


@dataclass
class Checkpoint:
    folder: Path
    reference: transformers.PreTrainedModel  # in fp32

    def logprobs(self, token_ids: list[int]) -> torch.Tensor:
        """fp32 [tokens, vocab_size] from transformers: row i is about the token after i."""
        with torch.inference_mode():
            return self.reference(torch.tensor([token_ids]), use_cache=False).logits[0].log_softmax(-1)

    def greedy(self, token_ids: list[int], count: int) -> list[int]:
        known = list(token_ids)
        for _ in range(count):
            known.append(int(self.logprobs(known)[-1].argmax()))
        return known[len(token_ids) :]


@dataclass
class Runner:
    """A worker and a scheduler for the poor: every sequence gets what the test says."""

    worker: Any  # with the `execute` of a Worker
    num_blocks: int
    sequences: dict[int, list[int]] = field(default_factory=dict)  # slot → known tokens
    computed: dict[int, int] = field(default_factory=dict)
    results: dict[int, list[SlotResult]] = field(default_factory=dict)

    def new(self, slot: int, tokens: list[int], blocks: list[int], params: SamplingParams, computed: int = 0) -> NewSlot:
        """`computed`: tokens whose keys and values are in the blocks already."""
        self.sequences[slot], self.computed[slot], self.results[slot] = list(tokens), computed, []
        return NewSlot(slot, f"r{slot}", list(tokens), len(tokens), computed, blocks, params, [], [])

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

    def score(self, prompt: list[int]) -> torch.Tensor:
        """fp32 [tokens - 1, vocab_size]: logprobs of what may follow each token, from one step in slot 0; it samples, too."""
        params = SamplingParams(temperature=0.0, prompt_logprobs=-1)
        self.step({0: len(prompt)}, [self.new(0, prompt, list(range(-(-len(prompt) // BLOCK))), params)])
        return as_rows(self.results[0][0].prompt_logprobs or [])


def as_rows(entries: list[TokenLogprobs]) -> torch.Tensor:
    """Logprobs of the whole vocabulary: fp32 [entries, vocab_size]."""
    rows = torch.empty(len(entries), len(entries[0].token_ids) - 1)
    for row, entry in zip(rows, entries, strict=True):
        row[torch.tensor(entry.token_ids[1:])] = torch.tensor(entry.logprobs[1:])
    return rows


def save(name: str, folder: Path, changed: dict[str, Any] | None = None, **how: Any) -> Checkpoint:
    """The model of a row of FAMILIES, with some values of its configuration `changed`."""
    config_class, model_class, values = FAMILIES[name]
    values = values | (changed or {})
    torch.manual_seed(sum(map(ord, name)))
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**values)).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_(0, 0.2)
            elif parameter.dim() == 1 or "norm" in parameter_name:
                parameter += torch.randn_like(parameter) * 0.2
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.2)
    model.save_pretrained(folder, **how)
    return Checkpoint(folder, model)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """A checkpoint that nobody changes, made once."""
    return cache(lambda name: save(name, tmp_path_factory.mktemp(name)))


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Checkpoint]:
    return lambda name, **how: save(name, tmp_path / name, **how)


@pytest.fixture
def make_runner() -> Callable[..., Runner]:
    return start


@pytest.fixture
def load_worker() -> Callable[..., Worker]:
    return load


def start(folder: Path, num_blocks: int = 64, **options: Any) -> Runner:
    worker = load(folder, **options)
    worker.allocate_kv(num_blocks)
    for layer in worker._pool.layers:  # what is not written must not matter
        layer.view(torch.uint8).fill_(0xFF)  # NaN in every type of float
    return Runner(worker, num_blocks)


def load(folder: Path, **options: Any) -> Worker:
    args = {"dtype": "float32", "block_size": BLOCK, "cpu_threads": 1, "max_num_seqs": 8, **options}
    worker = Worker(EngineArgs(model=str(folder), **args).resolve())
    worker.init_device()
    worker.load_model()
    return worker
