"""Steps on a device that has shapes but no numbers: to wait for one, which no graph may, is an error, and so to mix devices."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model.families import FAMILIES
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minivllm import kernels
from minivllm.config.engine_args import EngineArgs
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, StepPlan
from minivllm.model.loading import load
from minivllm.model.loading.dummy import DummySource
from minivllm.worker import worker as worker_module
from minivllm.worker.devices import DEVICES
from minivllm.worker.devices.base import Captured, Memory
from minivllm.worker.devices.cpu import CpuDevice
from minivllm.worker.worker import Worker

jit = pytest.importorskip("triton.runtime.jit")
CASES: list[tuple[str, dict[str, str]]] = [
    *((name, {}) for name in FAMILIES),
    ("qwen3-moe", {"quantization": "int4"}),
    ("qwen3", {"quantization": "int8", "kv_cache_dtype": "fp8"}),
]
PENALIZED = SamplingParams(presence_penalty=0.4, repetition_penalty=1.2, logit_bias={3: 2.0}, allowed_token_ids=[3, 4, 5])
WAYS = (
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(top_p=0.9, seed=1, logprobs=0),
    SamplingParams(top_k=20, min_p=0.01),
)


class OnlyThere(TorchDispatchMode):
    """Not even a copy from the host: a graph would repeat it with what then is in that memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, found)):
            assert not isinstance(tensor, torch.Tensor) or tensor.is_meta, f"{func} has a tensor on the host"
        return found


class Shapes(CpuDevice):
    torch_name = "meta"
    captures = True
    overlaps = True

    def memory(self) -> Memory:
        return Memory(1 << 36, 1 << 36)

    def send(self, arrays: Any) -> list[torch.Tensor]:
        return [torch.from_numpy(array).to("meta") for array in arrays]

    def fetch(self, tensors: Any) -> Any:
        assert all(tensor.is_meta for tensor in tensors)

    def capture(self, function: Any) -> Captured:
        with OnlyThere():
            return Captured(lambda: None, function())


class NoNumbers(DummySource):
    def __init__(self, shapes: Any, dtype: torch.dtype, *_: Any):
        self._shapes, self._dtype = shapes, dtype

    def read(self, name: str) -> torch.Tensor:
        return torch.empty(self._shapes[name], dtype=self._dtype, device="meta")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    found: set[str] = set()

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        assert all(arg.is_meta for arg in args if isinstance(arg, torch.Tensor))
        found.add(self.__name__)

    monkeypatch.setattr(jit.JITFunction, "run", run)
    monkeypatch.setattr(worker_module, "ops_for", lambda device, use_extension: kernels._load("triton"))
    monkeypatch.setattr(load, "DummySource", NoNumbers)
    monkeypatch.setitem(DEVICES, "cpu", Shapes)
    return found


@pytest.mark.parametrize(("name", "quantized"), CASES)
def test_nothing_waits(name: str, quantized: dict[str, str], tmp_path: Path, launched: set[str]) -> None:
    kind, architecture, values = FAMILIES[name]
    config = getattr(transformers, kind)(**values).to_dict() | {"architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = {"dtype": "bfloat16", "load_format": "dummy", "max_num_seqs": 9, "max_num_batched_tokens": 64, "block_size": 4}
    worker = Worker(EngineArgs(model=str(tmp_path), device="cpu", seed=0, **options, **quantized).resolve())
    worker.init_device()
    worker.load_model()
    worker.allocate_kv(60)
    assert len(launched) >= 4
    lengths = (9, 1, 10, 5)
    new = [
        NewSlot(s, f"r{s}", list(range(length)), length, 0, [4 * i + s for i in range(4)], way, [2], [[4, 5]] if s == 3 else [])
        for s, (length, way) in enumerate(zip(lengths, (*WAYS, PENALIZED), strict=True))
    ]
    worker.begin(StepPlan(0, [], new, [ScheduledSlot(s, length, 0, [], True) for s, length in enumerate(lengths)]))
    for done in range(2):
        scheduled = [ScheduledSlot(s, 1, length + done, [], True) for s, length in enumerate(lengths[:3])]
        worker.begin(StepPlan(1 + done, [3] if not done else [], [], scheduled))
    assert {"choose_kernel", "logprob_kernel", "penalty_kernel"} <= launched
