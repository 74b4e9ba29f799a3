"""The recorded program against the same operations one by one, and models that cannot be recorded."""

import importlib
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from minivllm.config.engine_args import EngineArgs
from minivllm.kernels import Unrecordable, extension_error
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, StepPlan
from minivllm.worker.worker import Worker

pytestmark = pytest.mark.skipif(extension_error() is not None, reason="the extension minivllm._cpu is not built")

CONFIG = {
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
MODELS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
    "window": {"architectures": ["MistralForCausalLM"], "sliding_window": 20, "hidden_act": "gelu"},
    "biases": {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 80, "intermediate_size": 100},
    "head-norms": {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 20, "query_pre_attn_scalar": 32},
    "whole-norms": {"architectures": ["Olmo3ForCausalLM"], "sliding_window": 20},
    "parallel": {"architectures": ["PhiForCausalLM"], "num_key_value_heads": 6},
    "alibi": {"architectures": ["BloomForCausalLM"], "num_key_value_heads": 6, "head_dim": 16},
    "positions": {"architectures": ["GPT2LMHeadModel"], "head_dim": 16},
}

MakeWorker = Callable[..., Worker]


@pytest.fixture
def make_worker(tmp_path: Path) -> Iterator[MakeWorker]:
    extension = importlib.import_module("minivllm._cpu")
    before = torch.get_num_threads(), extension.num_threads()

    def make(model: str, *, dtype: str = "bfloat16", threads: int = 1, eager: bool = False) -> Worker:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | MODELS[model]))
        options = {"load_format": "dummy", "dtype": dtype, "cpu_threads": threads, "seed": 0, "enforce_eager": eager}
        limits = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 1 << 22}
        worker = Worker(EngineArgs(model=str(tmp_path), **options, **limits).resolve())
        worker.init_device()
        worker.load_model()
        worker.allocate_kv(40)
        return worker

    yield make
    torch.set_num_threads(before[0])
    extension.set_threads(before[1])


def logits_of(worker: Worker) -> list[Tensor]:
    """Logits of prefills, chunks and decodes of several requests, alone and mixed."""
    runner, found = worker._runner, []
    compute = runner._model.compute_logits

    def noting(hidden: Tensor) -> Tensor:
        found.append(compute(hidden).clone())
        return found[-1].clone()

    runner._model.compute_logits = noting
    greedy = SamplingParams(temperature=0.0)

    def new(slot: int, length: int) -> NewSlot:
        tokens = [(7 * i + 31 * slot) % 300 for i in range(length)]
        return NewSlot(slot, f"r{slot}", tokens, length, 0, [10 * slot + i for i in range(10)], greedy, [], [])

    plans = [
        StepPlan(0, [], [new(0, 90)], [ScheduledSlot(0, 90, 0, [], True)]),
        StepPlan(1, [], [], [ScheduledSlot(0, 1, 90, [], True)]),
        StepPlan(2, [], [new(1, 120)], [ScheduledSlot(0, 1, 91, [], True), ScheduledSlot(1, 50, 0, [], False)]),
        StepPlan(3, [], [new(2, 1), new(3, 33)], [
            ScheduledSlot(0, 1, 92, [], True), ScheduledSlot(1, 70, 50, [], True),
            ScheduledSlot(2, 1, 0, [], True), ScheduledSlot(3, 33, 0, [], True),
        ]),
        StepPlan(4, [], [], [
            ScheduledSlot(3, 1, 33, [], True), ScheduledSlot(2, 1, 1, [], True),
            ScheduledSlot(1, 1, 120, [], True), ScheduledSlot(0, 1, 93, [], True),
        ]),
    ]  # fmt: skip
    for plan in plans:
        worker.execute(plan)
    return found


@pytest.mark.parametrize("threads, dtype", [(1, "bfloat16"), (2, "bfloat16"), (3, "bfloat16"), (2, "float32"), (2, "float16")])
@pytest.mark.parametrize("model", MODELS)
def test_recorded_and_eager_logits_are_the_same_bits(make_worker: MakeWorker, model: str, threads: int, dtype: str) -> None:
    if (model, dtype) == ("head-norms", "float16"):
        pytest.skip("Gemma is refused in float16")
    recorded, eager = (make_worker(model, dtype=dtype, threads=threads, eager=eager) for eager in (False, True))
    assert recorded._runner._graphs._program is not None and eager._runner._graphs._program is None
    pairs = list(zip(logits_of(recorded), logits_of(eager), strict=True))
    assert [len(logits) for logits, _ in pairs] == [1, 1, 1, 4, 4]
    for logits, expected in pairs:
        assert torch.equal(logits, expected) and logits.isfinite().all()


def test_another_number_of_threads_changes_only_the_last_bits(make_worker: MakeWorker) -> None:
    one, three = logits_of(make_worker("llama", threads=1)), logits_of(make_worker("llama", threads=3))
    for logits, expected in zip(three, one, strict=True):
        torch.testing.assert_close(logits, expected, rtol=0.02, atol=0.02)


def test_a_model_with_an_op_of_torch_runs_eagerly_and_the_log_names_it(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("minivllm").propagate = True
    worker = make_worker("llama")
    assert worker._runner is not None
    norm = worker._runner._model.model.norm
    norm.weight = norm.weight.repeat_interleave(2)[::2]  # no compiled norm takes a weight with gaps
    with caplog.at_level(logging.INFO, "minivllm"):
        worker.allocate_kv(41)
    assert worker._runner._graphs._program is None
    assert "operations run one by one: torch's" in caplog.text and "has no native form" in caplog.text
    for logits in logits_of(worker):
        assert logits.isfinite().all()


def test_a_new_cache_is_recorded_anew(make_worker: MakeWorker) -> None:
    worker = make_worker("llama")
    expected = logits_of(worker)
    worker = make_worker("llama")
    worker.allocate_kv(41)
    for logits, before in zip(logits_of(worker), expected, strict=True):
        assert torch.equal(logits, before)


def test_what_cannot_be_recorded() -> None:
    recording = importlib.import_module("minivllm.kernels.cpu.recording")
    norm = importlib.import_module("minivllm.kernels.cpu.norm")
    x, weight = torch.randn(11, 64).bfloat16(), torch.ones(64).bfloat16()

    def refusal(function: Callable[[], Tensor]) -> str:
        with torch.inference_mode(), pytest.raises(Unrecordable) as caught:
            recording.record(function, [x], (11,), 100)
        return str(caught.value)

    assert refusal(lambda: norm.rms_norm(x, weight, 1e-5) + 1) == "torch's add"
    some_rows = "a buffer of [8, 64], which does not grow with the rows,"
    assert refusal(lambda: norm.rms_norm(norm.rms_norm(x, weight, 1e-5)[3:], weight, 1e-5)) == some_rows
    assert refusal(lambda: norm.rms_norm(x[:, :32].contiguous(), weight[:32], 1e-5)) == "torch's contiguous"
    assert refusal(lambda: norm.rms_norm(x, weight, 1e-5).clamp_(max=1)) == "torch's clamp_"
    assert refusal(lambda: weight) == "a result that is no buffer of its own"


def test_a_program_runs_on_any_number_of_rows() -> None:
    recording = importlib.import_module("minivllm.kernels.cpu.recording")
    norm, activation = (importlib.import_module(f"minivllm.kernels.cpu.{name}") for name in ("norm", "activation"))
    x, weight = torch.randn(50, 64).bfloat16(), torch.ones(64).bfloat16()

    def function(x: Tensor) -> Tensor:
        for _ in range(4):
            x = norm.rms_norm(x, weight, 1e-5)
        heads = norm.rms_norm(x.view(-1, 4, 16), weight[:16], 1e-5).view(-1, 64)
        return activation.silu_and_mul(heads)

    with torch.inference_mode():
        recorded = x[:11].clone()
        program = recording.record(lambda: function(recorded), [recorded], (11,), 50)
        assert program.ops == ["norm"] * 5 + ["gate"] and len(program.run_timed([x], (50,))) == 6
        # Two buffers in turn, whatever the number of calls.
        assert program._memory[0].nbytes < 2.5 * x.nbytes + 64
        for rows in (1, 11, 50):
            assert torch.equal(program.run([x], (rows,)), function(x[:rows]))


def test_recording_does_not_import_torchs_compiler() -> None:
    """Its import takes longer than all the rest of a start."""
    code = """
import sys, torch
from minivllm.kernels.cpu import norm, recording
x, weight = torch.zeros(11, 64).bfloat16(), torch.ones(64).bfloat16()
with torch.inference_mode():
    recording.record(lambda: norm.rms_norm(x, weight, 1e-5), [x], (11,), 50)
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
