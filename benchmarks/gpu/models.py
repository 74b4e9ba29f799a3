"""For check.py and speed.py: the device, and workers on hand-made plans: a scheduler is not needed to know what it can do."""

import importlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from minivllm.config.engine_args import EngineArgs
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, SlotResult, StepPlan, StepResult
from minivllm.worker.worker import Worker

GREEDY = SamplingParams(temperature=0.0)

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "max_position_embeddings": 131072, "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "max_position_embeddings": 40960, "tie_word_embeddings": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "dtype": "bfloat16",
}  # fmt: skip


TINY = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the cases are: small ones try the programs, on a CPU."""

    device: str

    @property
    def small(self) -> bool:
        return self.device == "cpu"

    @property
    def has_fp8(self) -> bool:
        return self.small or torch.cuda.get_device_capability() >= (8, 9)

    def of(self, large: Any, small: Any) -> Any:
        return small if self.small else large


def interpret_if(needed: bool) -> None:
    """With TRITON_INTERPRET=1, before the first kernel runs."""
    if needed:
        sys.path.insert(0, str(Path(__file__).parents[2] / "tests/kernels/triton/interpreted"))
        importlib.import_module("interpreter").repair()


@dataclass(slots=True)
class Batch:
    """Sequences that all get the same number of tokens; blocks of a sequence lie apart from each other."""

    worker: Worker
    block_size: int
    per_seq: int  # blocks
    lengths: list[int] = field(default_factory=list)

    def prefill(self, prompts: list[list[int]], chunk: int, params: SamplingParams = GREEDY) -> list[SlotResult]:
        """Prompts into the cache, `chunk` tokens a step; the first tokens of the answers."""
        count = len(prompts)
        self.lengths = [len(prompt) for prompt in prompts]
        new = [
            NewSlot(s, f"r{s}", p, len(p), 0, [s + count * i for i in range(self.per_seq)], params, [], [])
            for s, p in enumerate(prompts)
        ]
        results: list[SlotResult] = []
        arriving: list[NewSlot] = []
        scheduled: list[ScheduledSlot] = []
        room = chunk
        for slot, length in enumerate(self.lengths):
            done = 0
            arriving.append(new[slot])
            while done < length:
                step = min(room, length - done)
                scheduled.append(ScheduledSlot(slot, step, done, [], done + step == length))
                done, room = done + step, room - step
                if not room or (slot == count - 1 and done == length):
                    results += self.worker.execute(StepPlan(0, [], arriving, scheduled)).results
                    arriving, scheduled, room = [], [], chunk
        return [result for result in results if result.token_ids or result.error]

    def begin(self) -> Callable[[], StepResult]:
        """One more token of each; the function waits for it."""
        plan = StepPlan(0, [], [], [ScheduledSlot(s, 1, length, [], True) for s, length in enumerate(self.lengths)])
        self.lengths = [length + 1 for length in self.lengths]
        return self.worker.begin(plan)

    def decode(self) -> list[SlotResult]:
        return self.begin()().results

    def decode_many(self, steps: int, overlapped: bool) -> Iterator[list[SlotResult]]:
        """overlapped: as the server does it, the next step begins before this one is done."""
        begun = deque[Callable[[], StepResult]]()
        most = self.worker.max_in_flight if overlapped else 1
        for left in range(steps, 0, -1):
            while len(begun) < min(left, most):
                begun.append(self.begin())
            yield begun.popleft()().results

    def free(self) -> None:
        self.worker.execute(StepPlan(0, list(range(len(self.lengths))), [], []))


def make_worker(folder: Path, num_blocks: int, config: dict[str, Any] | None = None, **options: Any) -> Worker:
    """From a checkpoint, or with random weights of the sizes in `config`."""
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        options = {"load_format": "dummy", **options}
    worker = Worker(EngineArgs(model=str(folder), seed=0, **options).resolve())
    worker.init_device()
    worker.load_model()
    worker.allocate_kv(num_blocks)
    return worker
