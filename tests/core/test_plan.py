"""`minivllm plan`: its numbers are those of the engine that is then started, and nothing is loaded for them."""

import json
from pathlib import Path

import msgspec
import pytest
import torch
import transformers

from minivllm.config import EngineArgs
from minivllm.core import startup
from minivllm.entrypoints.cli.main import main
from minivllm.messages.kv_spec import KVSpec
from minivllm.messages.plan import Plan, WorkerPlan
from minivllm.model.layers.layer import Layer

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}
OPTIONS = {"dtype": "bfloat16", "max_model_len": 256, "block_size": 16, "cpu_threads": 1, "max_num_seqs": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = transformers.LlamaConfig(num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, **SIZES)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def bytes_of(layer: Layer) -> int:
    """Of all tensors in a model's layers, packed ones too."""
    found: dict[int, int] = {}
    for _, each in layer.walk():
        for value in vars(each).values():
            if isinstance(value, torch.Tensor) or hasattr(value, "nbytes"):
                found[id(value)] = value.nbytes
    return sum(found.values())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "float32", "num_gpu_blocks_override": 20},
        {"kv_cache_memory_bytes": "1M", "kv_cache_dtype": "int8"},
        {"kv_cache_memory_bytes": "300k", "quantization": "int8"},
        {"quantization": "int4"},
    ],
)
def test_the_numbers_are_the_engines(options, folder: Path) -> None:
    config = EngineArgs(str(folder), **OPTIONS | {"kv_cache_memory_bytes": "2M"} | options).resolve()
    plan = startup.make_plan(config)
    core, ready = startup.build_core(config)
    worker = core.executor._worker
    kept = bytes_of(worker._runner._model)
    assert 0 <= kept - plan.worker.weight_bytes < 0.06 * kept  # scales of rows, rotary tables
    assert (plan.num_blocks, plan.block_size, plan.max_model_len) == (ready.num_blocks, 16, ready.max_model_len)
    layers = worker._pool.layers
    assert plan.num_blocks * plan.worker.kv_spec.bytes_per_block == sum(layer.nbytes for layer in layers)
    assert plan.kv_bytes_per_token == sum(layer.nbytes for layer in layers) // plan.num_tokens
    assert plan.concurrency == plan.num_tokens / plan.max_model_len
    assert plan.decode_rate(0) > plan.decode_rate(100) > 0 and plan.worker.read_bytes(1) == plan.worker.weight_bytes
    core.shutdown()


def test_experts_and_embeddings_are_read_in_part(tmp_path: Path) -> None:
    config = transformers.MixtralConfig(num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=1, **SIZES)
    config.architectures = ["MixtralForCausalLM"]
    config.save_pretrained(tmp_path)
    plan = startup.make_plan(EngineArgs(str(tmp_path), load_format="dummy", **OPTIONS).resolve())
    experts, embedding = 2 * 4 * 3 * 64 * 128 * 2, 256 * 64 * 2
    unread = [plan.worker.weight_bytes - plan.worker.read_bytes(batch) for batch in (1, 2, 200)]
    assert unread == pytest.approx([experts * 3 / 4 + embedding, experts * 9 / 16 + embedding, embedding])


def test_expected_rates() -> None:
    rates = [(1, 1e6), (8, 1e6), (32, 0.5e6), (128, 0.125e6)]
    worker = WorkerPlan(0, [(1.0, 8000), (0.0, 500)], 0, KVSpec(16, 160), 0, rates, read_rate=2e6)
    assert [worker.weight_seconds(batch) for batch in (1, 4, 20, 32, 256)] == pytest.approx([8e-3, 8e-3, 12e-3, 16e-3, 128e-3])
    plan = Plan(worker, num_stages=1, num_blocks=100, block_size=16, max_model_len=200)
    weights, contexts = 1 / plan.decode_rate(0), 1 / plan.decode_rate(1000) - 1 / plan.decode_rate(0)
    assert weights / 8e-3 == pytest.approx(1.15) and contexts / weights == pytest.approx(10 * 1000 / 2 / 8000 / 0.8)
    assert plan.decode_rate(1000, batch=20) == pytest.approx(20 / (weights * 1.5 + contexts * 20))
    staged = msgspec.structs.replace(plan, num_stages=2)
    assert staged.decode_rate(0) == plan.decode_rate(0) / 2 and staged.decode_rate(0, batch=64) == plan.decode_rate(0, batch=32)


def test_the_command(folder: Path, capsys) -> None:
    flags = ["--max-model-len", "256", "--block-size", "16", "--kv-cache-memory-bytes", "1MiB", "--cpu-threads", "1"]
    assert main(["plan", str(folder), *flags]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if not line.startswith("KV"))
    assert said["model"] == "LlamaForCausalLM in bfloat16" and said["weights"].startswith("0.00 GiB of ")
    assert said["tokens"] == "4,096 in 256 blocks of 16" and said["requests"] == "16.0 of 256 tokens at a time"
    assert "tokens/s for one request" in said["decoding"] and "tokens/s for 16 requests behind 256 tokens" in said["all"]
    assert main(["plan", str(folder), *flags, "--kv-cache-memory-bytes", "10k"]) == 1
    assert "problem        To serve one request of max_model_len=256 tokens" in capsys.readouterr().out
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    assert main(["plan", str(folder)]) == 1 and "minivllm: error: " in capsys.readouterr().err
