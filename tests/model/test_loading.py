"""Checkpoints that load, in the forms they come in. Those that cannot: test_bad_folders."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from minivllm.errors import ConfigError
from minivllm.messages.sampling_params import SamplingParams

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


@pytest.mark.parametrize("form", ["bin", "sharded bin", "pt", "before torch 1.6"])
def test_pytorch_files(form, sharded, make_runner):
    folder, tensors = sharded.folder, sharded.reference.state_dict()
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    torch.save({"step": Hidden()}, folder / "training_args.bin")  # not a part of the model, and never read
    if form == "sharded bin":
        names = sorted(tensors)
        assigned = {name: f"pytorch_model-0000{index % 2}.bin" for index, name in enumerate(names)}
        for file in set(assigned.values()):
            torch.save({name: tensors[name] for name in names if assigned[name] == file}, folder / file)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": assigned}))
    else:
        name = "model.pt" if form == "pt" else "pytorch_model.bin"
        torch.save(tensors, folder / name, _use_new_zipfile_serialization=not form.startswith("before"))
    assert greedy(make_runner(folder)) == greedy(make_runner(folder, load_format="bin")) == sharded.greedy(PROMPT, 5)


def test_the_format_asked_for(sharded, make_runner, load_worker):
    folder = sharded.folder
    torch.save({name: tensor + 1 for name, tensor in sharded.reference.state_dict().items()}, folder / "pytorch_model.bin")
    assert greedy(make_runner(folder)) == sharded.greedy(PROMPT, 5)
    assert greedy(make_runner(folder, load_format="pt")) != sharded.greedy(PROMPT, 5)
    (folder / "pytorch_model.bin").unlink()
    assert refusal(load_worker, folder, load_format="pt").endswith("has no weights: no *.bin or *.pt file (only model-00001-of-"
        f"{len(list(folder.glob('*.safetensors'))):05}.safetensors).")  # fmt: skip


class Hidden:
    """Of a type that must not be loaded."""


def test_tied_checkpoint_that_stores_the_head_too(make_checkpoint, make_runner):
    checkpoint = make_checkpoint("llama-tied")
    edit_weights(checkpoint.folder, lambda t: t.update({"lm_head.weight": torch.zeros(160, 48)}))
    edit_weights(checkpoint.folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}))
    assert greedy(make_runner(checkpoint.folder)) == checkpoint.greedy(PROMPT, 5)


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


def test_a_bar_shows_how_fast_weights_are_read(saved, load_worker, monkeypatch, capfd, caplog):
    worker = load_worker(saved("llama2").folder)
    caplog.set_level("INFO", "minivllm")
    monkeypatch.setattr("minivllm.model.loading.load._BAR_AFTER", 0.0)
    worker.load_model(progress=True)
    shown = capfd.readouterr().err
    assert "Loading weights: " in shown and "B/s]" in shown
    assert re.search(r"Loaded [\d.]+ GB of weights in [\d.]+ s \([\d.]+ GB/s\)", caplog.text)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_checkpoint_of_16_bits_in_float32(dtype, make_checkpoint, make_runner):
    checkpoint = make_checkpoint("llama2")
    checkpoint.reference.to(dtype).save_pretrained(checkpoint.folder)
    checkpoint.reference.float()
    assert greedy(make_runner(checkpoint.folder)) == checkpoint.greedy(PROMPT, 5)
