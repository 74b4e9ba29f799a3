"""Checkpoints that load, and folders that cannot: one clear line each."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from minivllm.errors import ConfigError
from minivllm.messages.sampling_params import SamplingParams
from minivllm.model.loading.safetensors import SafetensorsFolder

PROMPT = [5, 9, 77, 120, 33, 8]
GREEDY = SamplingParams(temperature=0.0)
INDEX = "model.safetensors.index.json"


def greedy(runner, count: int = 5) -> list[int]:
    runner.step({0: len(PROMPT)}, [runner.new(0, PROMPT, list(range(4)), GREEDY)])
    for _ in range(count - 1):
        runner.step({0: 1})
    return runner.sequences[0][len(PROMPT) :]


def edit_weights(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder, **values) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def refusal(load_worker, folder, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        load_worker(folder, **options)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.fixture
def sharded(make_checkpoint):
    checkpoint = make_checkpoint("qwen2-untied", max_shard_size="60KB")
    assert len(list(checkpoint.folder.glob("*.safetensors"))) > 2
    return checkpoint


def test_sharded(sharded, make_runner):
    assert greedy(make_runner(sharded.folder)) == sharded.greedy(PROMPT, 5)


def test_only_what_the_index_assigns_is_read(sharded, make_runner):
    save_file({"model.norm.weight": torch.zeros(3)}, sharded.folder / "stray.safetensors")
    first = sorted(sharded.folder.glob("model-*.safetensors"))[0]
    tensors = load_file(first)
    save_file(tensors | {"model.layers.9.stray": torch.zeros(3)}, first)
    assert greedy(make_runner(sharded.folder)) == sharded.greedy(PROMPT, 5)


def test_missing_shard(sharded, load_worker):
    gone = sorted(sharded.folder.glob("model-*.safetensors"))[1]
    gone.unlink()
    assert refusal(load_worker, sharded.folder) == f"{sharded.folder} lacks {gone.name}, which its {INDEX} names."


def test_index_that_promises_too_much(sharded, load_worker):
    path = sharded.folder / INDEX
    index = json.loads(path.read_text())
    index["weight_map"]["model.extra.weight"] = next(iter(index["weight_map"].values()))
    path.write_text(json.dumps(index))
    message = refusal(load_worker, sharded.folder)
    assert message == f"{sharded.folder}: {INDEX} names tensors that are not in their files: model.extra.weight."


@pytest.mark.parametrize("content", ["{", '{"weight_map": 3}', '{"weight_map": {"a": "../other.safetensors"}}'])
def test_bad_index(sharded, load_worker, content):
    (sharded.folder / INDEX).write_text(content)
    assert str(sharded.folder / INDEX) in refusal(load_worker, sharded.folder)


def test_tied_checkpoint_that_stores_the_head_too(make_checkpoint, make_runner):
    checkpoint = make_checkpoint("llama-tied")
    edit_weights(checkpoint.folder, lambda t: t.update({"lm_head.weight": torch.zeros(160, 48)}))
    edit_weights(checkpoint.folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}))
    assert greedy(make_runner(checkpoint.folder)) == checkpoint.greedy(PROMPT, 5)


def test_untied_without_a_head(make_checkpoint, load_worker):
    folder = make_checkpoint("llama2").folder
    edit_weights(folder, lambda t: t.pop("lm_head.weight"))
    message = refusal(load_worker, folder)
    assert message == (
        f"the checkpoint in {folder} lacks lm_head.weight "
        "(config.json says tie_word_embeddings=false, so the output head must be in the checkpoint)."
    )


def test_missing_and_left_over(make_checkpoint, load_worker):
    folder = make_checkpoint("llama2").folder
    edit_weights(folder, lambda t: t.update({"model.layers.1.mlp.gate.weight": t.pop("model.layers.1.mlp.gate_proj.weight")}))
    assert refusal(load_worker, folder) == (
        f"the checkpoint in {folder} lacks model.layers.1.mlp.gate_proj.weight and has model.layers.1.mlp.gate.weight, "
        "which a LlamaForCausalLM does not have."
    )


def test_wrong_shape(make_checkpoint, load_worker):
    folder = make_checkpoint("llama2").folder
    edit_config(folder, intermediate_size=72)
    message = refusal(load_worker, folder)
    assert "mlp.gate_proj.weight has the shape [80, 48], [72, 48] is expected" in message


@pytest.mark.parametrize("size", [3, 100, 20_000])
def test_truncated_file(make_checkpoint, load_worker, size):
    folder = make_checkpoint("llama2").folder
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert refusal(load_worker, folder).startswith(f"{path} is not a complete safetensors file: ")


@pytest.mark.parametrize("data", [b"\xff" * 64, (2).to_bytes(8, "little") + b"[]", (2).to_bytes(8, "little") + b"{]"])
def test_no_safetensors_at_all(make_checkpoint, load_worker, data):
    folder = make_checkpoint("llama2").folder
    (folder / "model.safetensors").write_bytes(data)
    assert "is not a complete safetensors file" in refusal(load_worker, folder)


def test_one_tensor_in_two_files(make_checkpoint, load_worker):
    folder = make_checkpoint("llama2").folder
    shutil.copy(folder / "model.safetensors", folder / "copy.safetensors")
    assert "is in two files" in refusal(load_worker, folder)


def test_number_type_that_no_one_reads(make_checkpoint, load_worker):
    folder = make_checkpoint("llama2").folder
    edit_weights(folder, lambda t: t.update({"model.norm.weight": t["model.norm.weight"].to(torch.float8_e5m2)}))
    assert "model.norm.weight has number type F8_E5M2, which is not supported" in refusal(load_worker, folder)


def test_folder_without_weights(tmp_path):
    with pytest.raises(ConfigError, match="has no weights"):
        SafetensorsFolder(tmp_path)


def test_unsupported_architecture(make_checkpoint, load_worker):
    folder = make_checkpoint("llama2").folder
    edit_config(folder, architectures=["MambaForCausalLM"])
    cannot = "Model architectures ['MambaForCausalLM'] are not supported for now"
    assert refusal(load_worker, folder) == f"{cannot}: transformers makes a LlamaForCausalLM of it."
    assert refusal(load_worker, folder, model_impl="minivllm").startswith(f"{cannot}. Supported architectures: Bert")


def test_too_large_for_the_memory(make_checkpoint, load_worker):
    folder = make_checkpoint("llama2").folder
    edit_config(folder, vocab_size=10**9)
    said = refusal(load_worker, folder, load_format="dummy")
    assert "GiB in float32" in said and "memory are free" in said


def test_unsupported_activation(make_checkpoint, load_worker):
    folder = make_checkpoint("llama2").folder
    edit_config(folder, hidden_act="relu2")
    assert "hidden_act 'relu2' is not supported" in refusal(load_worker, folder)


def test_dummy_weights_are_the_same_each_time(make_checkpoint, make_runner):
    folder = make_checkpoint("llama2").folder
    (folder / "model.safetensors").unlink()
    one, two = (greedy(make_runner(folder, load_format="dummy")) for _ in range(2))
    assert one == two
    assert greedy(make_runner(folder, load_format="dummy", seed=4)) != one


def test_nothing_of_the_file_is_kept(make_checkpoint, make_runner):
    checkpoint = make_checkpoint("llama2")
    runner = make_runner(checkpoint.folder)
    with (checkpoint.folder / "model.safetensors").open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(0)
        file.write(b"\xff" * size)
    assert greedy(runner) == checkpoint.greedy(PROMPT, 5)


def test_bfloat16_checkpoint_in_float32(make_checkpoint, make_runner):
    checkpoint = make_checkpoint("llama2")
    checkpoint.reference.to(torch.bfloat16).save_pretrained(checkpoint.folder)
    checkpoint.reference.float()
    assert greedy(make_runner(checkpoint.folder)) == checkpoint.greedy(PROMPT, 5)
