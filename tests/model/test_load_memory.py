"""Memory while weights are read: no more than the weights and one shard, in every form that they come in."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from gguf_files import NUMBERS, encode, file_bytes, model_metadata, write_model

SIZES = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 8}
SHARD = 50_000_000
MEASURED = """
import resource, sys
from minivllm.config import EngineArgs
from minivllm.worker.worker import Worker

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def make(model):
    worker = Worker(EngineArgs(model, dtype="bfloat16", max_model_len=64, cpu_threads=1).resolve())
    worker.init_device()
    return worker

make(sys.argv[2]).load_model()  # so that only weights are new, and no code
worker = make(sys.argv[1])
before = resident()
open("/proc/self/clear_refs", "w").write("5")  # begin a new peak
worker.load_model()
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak - before, resident() - before)
"""


def write_shards(folder: Path, form: str) -> int:
    config = transformers.LlamaConfig(vocab_size=4096, num_key_value_heads=8, max_position_embeddings=128, **SIZES)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model = model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(0.01)
    if form == "safetensors":
        model.save_pretrained(folder, max_shard_size=SHARD)
    else:
        config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(folder)
        tensors, assigned = model.state_dict(), {}
        for layer in ("", *(f"model.layers.{i}." for i in range(4))):
            names = [n for n in tensors if n.startswith(layer) if layer or not n.startswith("model.layers.")]
            file = f"pytorch_model-{layer.strip('.') or 'rest'}.bin"
            torch.save({name: tensors[name].clone() for name in names}, folder / file)
            assigned |= dict.fromkeys(names, file)
        (folder / "pytorch_model.bin.index.json").write_text(str({"weight_map": assigned}).replace("'", '"'))
    return sum(parameter.nbytes for parameter in model.parameters())


def write_gguf(path: Path) -> int:
    sizes = {"block_count": 4, "embedding_length": 1024, "feed_forward_length": 4096, "attention.head_count": 8}
    metadata = model_metadata() | {f"llama.{key}": value for key, value in sizes.items()} | {"llama.attention.head_count_kv": 8}
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (4096, 1024), "output_norm.weight": (1024,)}
    for i in range(4):
        shapes |= {f"blk.{i}.attn_{part}.weight": (1024, 1024) for part in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.ffn_{part}.weight": (4096, 1024) for part in ("gate", "up")}
        shapes |= {f"blk.{i}.ffn_down.weight": (1024, 4096)}
        shapes |= {f"blk.{i}.{part}_norm.weight": (1024,) for part in ("attn", "ffn")}
    tensors = {}
    for name, shape in shapes.items():
        number = NUMBERS["Q8_0" if len(shape) == 2 else "F32"]
        row = encode(np.full(shape[-1], 0.01, np.float32), number)
        tensors[name] = (number, shape, row * (shape[0] if len(shape) == 2 else 1))
    path.write_bytes(file_bytes(metadata, tensors))
    return sum(len(data) for _, _, data in tensors.values()) * 36 // 34  # a least value for every scale


@pytest.mark.parametrize("form", ["safetensors", "pt", "gguf"])
def test_peak(form: str, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf" if form == "gguf" else tmp_path
    (tmp_path / "small").mkdir()
    weights = write_gguf(model) if form == "gguf" else write_shards(model, form)
    small = write_model(tmp_path / "small" / "m.gguf")
    command = [sys.executable, "-c", MEASURED, str(model), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    peak, kept = map(int, done.stdout.split())
    print(f"{form}: weights {weights / 1e6:.0f} MB, kept {kept / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB")
    assert 0.9 * weights < kept and peak < weights + SHARD
