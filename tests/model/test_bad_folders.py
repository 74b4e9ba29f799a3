"""What is wrong with a model's folder: one clear line each, from the same path as a server takes, and nothing started."""

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
from gguf_files import file_bytes, model_metadata, model_shapes, write_model
from safetensors.torch import load_file, save_file

from minivllm.errors import ConfigError
from minivllm.text.tokenizer import load_tokenizer

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return apply


def config(**values: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        found = json.loads((folder / "config.json").read_text()) | values
        text = json.dumps({name: value for name, value in found.items() if value is not None})
        (folder / "config.json").write_text(text)

    return apply


def written(name: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def cut(size: int) -> Callable[[Path], None]:
    return lambda folder: written(WEIGHTS, (folder / WEIGHTS).read_bytes()[:size])(folder)


def shards(change: Callable[[Path, dict[str, str]], object]) -> Callable[[Path], None]:
    """Two files and an index, of which `change` may alter the map."""

    def apply(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        names = sorted(tensors)
        assigned = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
        for file in set(assigned.values()):
            save_file({name: tensors[name] for name in names if assigned[name] == file}, folder / file)
        change(folder, assigned)
        (folder / INDEX).write_text(json.dumps({"weight_map": assigned}))

    return apply


def torch_file(content: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        torch.save(content, folder / "pytorch_model.bin")

    return apply


class Code:
    def __reduce__(self):
        return print, ("this code must not run",)


def cut_torch_file(folder: Path) -> None:
    torch_file({"model.norm.weight": torch.zeros(1000)})(folder)
    path = folder / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:700])


def old_pickle(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Code()))


def gguf(change: Callable[[bytes], bytes] = bytes, **metadata: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        clear(folder)
        path = write_model(folder / "m.gguf", **metadata)
        path.write_bytes(change(path.read_bytes()))

    return apply


def gguf_part(number: int) -> Callable[[Path], None]:
    """One of a model in three files."""

    def apply(folder: Path) -> None:
        gguf(**{"split.no": number - 1, "split.count": 3})(folder)
        (folder / "m.gguf").rename(folder / f"m-0000{number}-of-00003.gguf")

    return apply


def gguf_of_shapes(**shapes: tuple[int, ...]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        clear(folder)
        found = model_shapes() | {name.replace("__", "."): shape for name, shape in shapes.items()}
        tensors = {name: (0, shape, bytes(4 * torch.Size(shape).numel())) for name, shape in found.items()}
        (folder / "m.gguf").write_bytes(file_bytes(model_metadata(), tensors))

    return apply


BROKEN_FILE = "/model.safetensors is not a complete safetensors file: "
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty folder": (clear, "has no config.json: it is not the folder of a Hugging Face model."),
    "no folder": (shutil.rmtree, "does not exist."),
    "a file": (lambda folder: (shutil.rmtree(folder), folder.write_text("x")), "is a file: give the folder of the model, or"),
    "config that is no JSON": (written("config.json", "{'a': 1}"), "config.json is not JSON: Expecting property name"),
    "config that is a list": (written("config.json", "[]"), "config.json must hold a JSON object."),
    "config that is no text": (written("config.json", b"\xff\xfe"), "config.json is not JSON: "),
    "config without architectures": (config(architectures=None), "config.json names no architectures; set them with --hf-o"),
    "config without fields": (config(hidden_size=None), "config.json has no hidden_size"),
    "config with a text for a number": (config(num_hidden_layers="three"), "num_hidden_layers must be a positive integer"),
    "config that does not add up": (config(num_key_value_heads=4), "6 attention heads cannot share 4 key/value heads"),
    "an unknown architecture": (config(architectures=["NoSuchForCausalLM"]), "['NoSuchForCausalLM'] are not supported for now"),
    "an unknown activation": (config(hidden_act="sin"), "hidden_act 'sin' is not supported"),
    "generation config that is no JSON": (written("generation_config.json", "{"), "generation_config.json is not JSON: "),
    "a broken tokenizer": (written("tokenizer.json", '{"model": 3}'), "tokenizer.json is not a tokenizer: "),
    "no tokenizer": (bytes, "tokenizer.json is missing. Give a folder that has one by --tokenizer."),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "has no weights: no *.safetensors, *.bin or *.gguf file."),
    "a missing shard": (shards(lambda folder, _: (folder / "part-1.safetensors").unlink()),
                        f"lacks part-1.safetensors, which its {INDEX} names."),
    "all shards missing": (shards(lambda folder, assigned: [(folder / f).unlink() for f in set(assigned.values())]),
                           f"lacks part-0.safetensors, part-1.safetensors, which its {INDEX} names."),
    "an index with other tensors": (shards(lambda _, assigned: assigned.update({"model.x": "part-0.safetensors"})),
                                    f"{INDEX} names tensors that are not in their files: model.x."),
    "an index that leaves the folder": (shards(lambda _, assigned: assigned.update({"a": "../a.safetensors"})),
                                        "names a file outside the model folder: ../a.safetensors."),
    "an index that is no JSON": (written(INDEX, "{"), f"{INDEX} is not an index of checkpoint files."),
    "an index of another form": (written(INDEX, '{"weight_map": 3}'), f"{INDEX} is not an index of checkpoint files."),
    "a stray file": (lambda folder: shutil.copy(folder / WEIGHTS, folder / "a.safetensors"), "is in two files, model.safetens"),
    "a missing tensor": (weights(lambda t: t.pop("lm_head.weight")), "lacks lm_head.weight (config.json says tie_word_embedd"),
    "a tensor of another name": (weights(lambda t: t.update({"model.layers.1.mlp.gate.weight": t.pop("model.layers.1.mlp.gate_proj.weight")})),  # noqa: E501
                                 "lacks model.layers.1.mlp.gate_proj.weight and has model.layers.1.mlp.gate.weight, which a"),
    "a wrong shape": (config(intermediate_size=72), "mlp.gate_proj.weight has the shape [80, 48], [72, 48] is expected"),
    "a strange number type": (weights(lambda t: t.update({"model.norm.weight": t["model.norm.weight"].to(torch.float8_e5m2)})),
                              "model.norm.weight has number type F8_E5M2, which is not supported"),
    "a file of three bytes": (cut(3), BROKEN_FILE + "it is too short."),
    "a file cut in its header": (cut(100), BROKEN_FILE + "its header does not fit in it."),
    "a file cut in its data": (cut(20_000), BROKEN_FILE + "it ends before the data of "),
    "a header of nonsense": (written(WEIGHTS, b"\xff" * 64), BROKEN_FILE + "its header does not fit in it."),
    "a header that is a list": (written(WEIGHTS, (2).to_bytes(8, "little") + b"[]"), BROKEN_FILE + "its header is not a JSON"),
    "a header that is no JSON": (written(WEIGHTS, (2).to_bytes(8, "little") + b"{]"), BROKEN_FILE + "its header is not JSON"),
    "a pickle with code": (torch_file({"a": Code()}), "pytorch_model.bin holds more than tensors, and to read it would be to"),
    "an old pickle with code": (old_pickle, "pytorch_model.bin holds more than tensors, and to read it would be to run code"),
    "a cut PyTorch file": (cut_torch_file, "pytorch_model.bin is not a complete PyTorch file. Fetch it again."),
    "a PyTorch file of nonsense": (lambda folder: (folder / WEIGHTS).rename(folder / "model.pt"), "not a complete PyTorch"),
    "a PyTorch file of something else": (torch_file([1, 2]), "pytorch_model.bin is not a checkpoint: it does not hold"),
    "a cut GGUF file": (gguf(lambda data: data[:-100]), "m.gguf is not a complete GGUF file: it ends before the data of"),
    "a GGUF file cut in its header": (gguf(lambda data: data[:900]), "is not a complete GGUF file: it ends within its header."),
    "GGUF files that are missing": (gguf_part(1), "lacks m-00002-of-00003.gguf, m-00003-of-00003.gguf: the model is in 3"),
    "the first of GGUF files missing": (gguf_part(2), "m-00001-of-00003.gguf: No such file or directory."),
    "a GGUF file of something else": (gguf(lambda data: b"GGML" + data[4:]), "is not a complete GGUF file: it does not begin"),
    "a GGUF file of unknown architecture": (gguf(**{"general.architecture": "mamba"}), "['mamba'] are not supported for now"),
    "a GGUF file of a wrong shape": (gguf_of_shapes(blk__0__ffn_up__weight=(90, 64)), "up_proj.weight has the shape [90, 64]"),
    "a GGUF file with a strange tensor": (gguf_of_shapes(blk__1__ssm_a=(4,)), "has blk.1.ssm_a, which a LlamaForCausalLM does"),
}  # fmt: skip


@pytest.fixture
def folder(make_checkpoint) -> Path:
    return make_checkpoint("llama2").folder


@pytest.mark.parametrize("what", BAD)
def test_one_clear_line(what: str, folder: Path, load_worker, capfd) -> None:
    spoil, said = BAD[what]
    spoil(folder)
    with pytest.raises(ConfigError) as caught:
        load_tokenizer(load_worker(folder)._config.model.tokenizer)
    assert said in caught.value.message and "\n" not in caught.value.message
    assert "must not run" not in capfd.readouterr().out


@pytest.mark.parametrize("what", ["a missing shard", "no tokenizer"])
def test_a_server_does_not_start(what: str, folder: Path) -> None:
    spoil, said = BAD[what]
    spoil(folder)
    if what != "no tokenizer":
        tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 159}, "a")).save(str(folder / "tokenizer.json"))
    command = [sys.executable, "-m", "minivllm", "serve", str(folder), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    errors = [line for line in done.stderr.splitlines() if line.startswith("minivllm: error: ")]
    assert done.returncode == 1 and len(errors) == 1 and said in errors[0], done.stderr
    assert "Traceback" not in done.stderr
