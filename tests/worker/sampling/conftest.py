"""A sampler over hand-made slots, on each family of kernels."""

from dataclasses import dataclass, field

import pytest
import torch

from minivllm.config.sections.device import DeviceConfig
from minivllm.kernels import ops_for
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, StepPlan, TokenMasks
from minivllm.worker.devices.cpu import CpuDevice
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.sampling.sampler import Sampled, Sampler

NUM_SLOTS = 16


@dataclass
class Bench:
    extension: bool
    vocab_size: int = 2**31
    slots: RequestSlots = field(default_factory=lambda: RequestSlots(NUM_SLOTS, 256, 16))
    sampler: Sampler = None

    def __post_init__(self):
        op = ops_for("cpu", use_extension=self.extension).sampling
        self.sampler = Sampler(op, self.slots, CpuDevice(DeviceConfig()), NUM_SLOTS, None, self.vocab_size)

    def add(self, slot: int, params: SamplingParams, prompt=(1,), output=(), eos=(), bad_words=()) -> None:
        new = NewSlot(
            slot, f"r{slot}", [*prompt, *output], len(prompt), 0, [0], params, list(eos), [list(w) for w in bad_words]
        )
        plan = StepPlan(0, [slot], [new], [])
        self.slots.apply(plan)
        self.sampler.start_step(plan)

    def sample(self, logits: torch.Tensor, slots: list[int], masks: dict[int, list[int]] | None = None) -> list[Sampled]:
        """As the model runner does: tokens are appended. `masks`: by slot, the only tokens that may come."""
        rows = bytearray().join(_bits(allowed, logits.shape[1]) for allowed in (masks or {}).values())
        self.sampler.start_step(StepPlan(0, [], [], [], TokenMasks(list(masks), rows) if masks else None))
        choice = self.sampler.sample(logits.clone(), slots, lambda: None)
        results = self.sampler.finish(choice, set())
        for slot, result in zip(slots, results, strict=True):
            if result.error is None:
                self.slots.append(slot, result.token)
        return results

    def tokens(self, logits: torch.Tensor, slots: list[int], masks: dict[int, list[int]] | None = None) -> list[int]:
        return [result.token for result in self.sample(logits, slots, masks)]


def _bits(tokens: list[int], vocab_size: int) -> bytes:
    mask = bytearray(-(-vocab_size // 64) * 8)
    for token in tokens:
        mask[token // 8] |= 1 << token % 8
    return bytes(mask)


@pytest.fixture(params=[True, False], ids=["extension", "reference"])
def bench(request) -> Bench:
    return Bench(request.param)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)
