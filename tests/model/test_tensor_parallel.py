"""Families divided among ranks, by tensor and by expert, against transformers; ranks are threads on shared memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from distributed.ranks import together
from gguf_files import NUMBERS, write_model
from model.conftest import BLOCK, Runner
from model.families import FAMILIES
from model.quantization.test_checkpoints import error, tiny, write
from model.quantization.writers import AWQ, GPTQ, BitsAndBytes, Float8
from model.test_families import GREEDY, check, prompt_of

from minivllm.config.engine_args import EngineArgs
from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import Rank, Share, check_shares, intermediate_share, share_of, whole
from minivllm.distributed.groups import Layout
from minivllm.errors import ConfigError
from minivllm.kernels import extension_error
from minivllm.messages.step import StepPlan, StepResult
from minivllm.model.layers.linear import Linear
from minivllm.model.quantization.grouped import Grouped
from minivllm.worker.worker import Worker

pytestmark = pytest.mark.skipif(extension_error() is not None, reason="the extension minivllm._cpu is not built")
MIXTURES = [name for name, (_, _, values) in FAMILIES.items() if "num_experts" in values]


class Workers:
    """All ranks of one model; every one must say the same."""

    def __init__(self, folder: Path, size: int, **options: Any):
        args = {"dtype": "float32", "block_size": BLOCK, "cpu_threads": 1, "max_num_seqs": 8, "max_model_len": 64, **options}
        config = EngineArgs(model=str(folder), tensor_parallel_size=size, seed=0, **args).resolve()
        layout, name = Layout(size), f"test-{uuid4().hex}"
        self.ranks = [Worker(config, layout.place(rank), name) for rank in range(size)]
        together(size, lambda rank: self.ranks[rank].init_device())
        for worker in self.ranks:  # one after the other: a recording is of all that the process calls
            worker.load_model()
            worker.allocate_kv(64)

    def execute(self, plan: StepPlan) -> StepResult:
        results = together(len(self.ranks), lambda rank: self.ranks[rank].execute(plan))
        assert all(result.results == results[0].results for result in results)
        return results[0]


@pytest.fixture
def divided() -> Iterator[Callable[..., Runner]]:
    made: list[Workers] = []

    def make(folder: Path, size: int = 2, **options: Any) -> Runner:
        made.append(Workers(folder, size, **options))
        return Runner(made[-1], 64)

    yield make
    for workers in made:
        for worker in workers.ranks:
            worker.shutdown()


def run_and_check(checkpoint: Any, runner: Runner) -> None:
    prompts = [prompt_of(length, length) for length in (21, 10)]
    runner.step({0: 21, 1: 4}, [runner.new(i, p, list(range(12 * i, 12 * i + 12)), GREEDY) for i, p in enumerate(prompts)])
    runner.step({0: 1, 1: 6})
    runner.step({0: 1, 1: 1})
    runner.step({0: 1, 1: 1})
    for slot, prompt in enumerate(prompts):
        check(checkpoint, runner, slot, prompt)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks(family, saved, divided):
    checkpoint = saved(family)
    run_and_check(checkpoint, divided(checkpoint.folder))


@pytest.mark.parametrize("family", ["llama3", "olmo2", "gpt-oss", "mpt", "cohere", "deepseek-v3", "gemma2"])
def test_four_ranks_have_unequal_parts_or_the_same_keys(family, saved, divided):
    checkpoint = saved(family)
    run_and_check(checkpoint, divided(checkpoint.folder, 4))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", MIXTURES)
def test_experts_on_different_ranks(family, size, saved, divided):
    checkpoint = saved(family)
    run_and_check(checkpoint, divided(checkpoint.folder, size, enable_expert_parallel=True))


@pytest.mark.parametrize("family", ["llama-tied", "stablelm"])
def test_one_by_one_like_recorded(family, saved, divided):
    checkpoint = saved(family)
    runner = divided(checkpoint.folder, enforce_eager=True)
    run_and_check(checkpoint, runner)
    program = divided(checkpoint.folder).worker.ranks[0]._runner._graphs._program
    assert program.ops.count("all_reduce") == 2 * 3 + 1  # in each layer, and of the embedding


def logprobs_of(runner: Runner) -> torch.Tensor:
    prompt = prompt_of(20, 4)
    runner.step({0: 20}, [runner.new(0, prompt, list(range(10)), GREEDY)])
    return torch.tensor([entry.logprobs[:4] for entry in runner.results[0][0].prompt_logprobs])


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_half_precision_and_int8_stay_close(quantization, saved, divided, make_runner):
    checkpoint = saved("qwen2")
    alone, both = (
        logprobs_of(make(checkpoint.folder, dtype="bfloat16", quantization=quantization)) for make in (make_runner, divided)
    )
    assert (alone - both).abs().mean() < 0.05


def test_weights_kept_packed(tmp_path, divided, make_runner):
    path = write_model(tmp_path / "m.gguf", "llama", NUMBERS["Q8_0"])
    options = {"dtype": "bfloat16", "max_model_len": 64}
    alone = logprobs_of(make_runner(path, **options))
    runner = divided(path, **options)
    layers = [rank._runner._model.model.layers[0] for rank in runner.worker.ranks]
    assert {type(layer.mlp.down_proj.scheme) for layer in layers} == {Grouped}
    assert (alone - logprobs_of(runner)).abs().mean() < 0.05


@pytest.mark.parametrize("enable_expert_parallel", [False, True])
def test_quantized_experts(enable_expert_parallel, tmp_path, divided, monkeypatch):
    sizes = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 32}
    checkpoint = write(tmp_path / "model", GPTQ(), tiny("Qwen3MoeConfig", **sizes))
    monkeypatch.setenv("MINIVLLM_NO_EXT", "1")
    runner = divided(checkpoint.folder, enable_expert_parallel=enable_expert_parallel)
    assert error(runner, checkpoint) < 6e-3


def test_each_rank_keeps_its_part_only(saved, divided):
    ranks = divided(saved("llama2").folder).worker.ranks
    whole_kv = 3 * 2 * BLOCK * 6 * 8 * 4  # layers, keys and values, tokens, heads, elements, bytes
    assert [worker.kv_spec().bytes_per_block for worker in ranks] == [whole_kv // 2] * 2
    layer = ranks[1]._runner._model.model.layers[0]
    attention, mlp = layer.self_attn, layer.mlp
    shapes = [m.weight.shape for m in (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)]
    assert shapes == [(72, 48), (48, 24), (80, 48), (48, 40)]


def test_shares():
    assert [share_of(10, Rank(rank, 4), "x") for rank in range(4)] == [
        Share(10, *edges) for edges in ((0, 2), (2, 5), (5, 7), (7, 10))
    ]
    assert intermediate_share(1536, Rank(1, 2)) == Share(1536, 768, 1536)
    assert intermediate_share(96, Rank(0, 2)) == Share(96, 0, 32) and intermediate_share(80, Rank(0, 2)) == Share(80, 0, 40)
    assert Share(3, 1, 3).times(64) == Share(192, 64, 192) and Share(192, 64, 192).per(32) == Share(6, 2, 6)
    assert Share(100, 64, 100).per(32) == Share(4, 2, 4) and whole(7).is_whole
    with pytest.raises(ConfigError, match="weights 0 to 40 of 80, which are quantized in groups of 32"):
        Share(80, 0, 40).per(32)
    assert Share(3, 1, 2).each(whole(5), Share(4, 0, 2)) == (
        Share(5, 0, 0), Share(4, 0, 0), whole(5), Share(4, 0, 2), Share(5, 0, 0), Share(4, 0, 0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("family", "size", "message"),
    [
        ("llama3", 3, r"attention heads, which share 2 key/value heads, \(6\) must be divisible by tensor parallel size \(3\)"),
        ("qwen3-moe", 3, r"share 2 key/value heads, \(6\)"),
        ("llama2", 7, r"attention heads.* \(6\) must be divisible by tensor parallel size \(7\)"),
    ],
)
def test_sizes_that_do_not_divide(family, size, message, saved):
    with pytest.raises(ConfigError, match=message):
        EngineArgs(model=str(saved(family).folder), tensor_parallel_size=size).resolve()


def test_more_ranks_than_something_has():
    spec = ModelSpec.from_hf(
        {"architectures": ["MixtralForCausalLM"], "vocab_size": 64, "hidden_size": 64, "intermediate_size": 12}
        | {"num_hidden_layers": 1, "num_attention_heads": 16, "num_local_experts": 6, "num_experts_per_tok": 2}
        | {"max_position_embeddings": 32}
    )
    check_shares(spec, 4, True)
    check_shares(spec, 8, False)
    with pytest.raises(ConfigError, match=r"Number of experts \(6\) must be divisible by tensor parallel size \(8\)\."):
        check_shares(spec, 8, True)
    with pytest.raises(ConfigError, match=r"Intermediate size \(12\) must be divisible by tensor parallel size \(16\)\."):
        check_shares(spec, 16, False)


ACT_ORDER = GPTQ(group=128, act_order=True)


@pytest.mark.parametrize("writer", [GPTQ(), ACT_ORDER, AWQ(128), BitsAndBytes(), Float8(128)], ids=repr)
def test_quantized_checkpoints(writer, tmp_path, divided):
    checkpoint = write(tmp_path / "model", writer, tiny())
    assert error(divided(checkpoint.folder), checkpoint) < 2e-5
    runner = divided(checkpoint.folder, dtype="bfloat16")
    assert error(runner, checkpoint) < 0.06
    layers = [layer for _, layer in runner.worker.ranks[1]._runner._model.walk() if isinstance(layer, Linear)]
    packed = sum(isinstance(layer.scheme, Grouped) for layer in layers)
    assert packed == (6 if writer is ACT_ORDER else 8)  # a part of columns in several groups that are in another order is not
