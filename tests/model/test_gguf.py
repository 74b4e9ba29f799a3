"""Models out of GGUF files: every block format against the gguf package, whole models against transformers."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import quants
from gguf_files import NUMBERS, file_bytes, model_metadata, write_model
from model.gguf_blocks import error_kept_packed, random_blocks, tensor_file
from safetensors.torch import load_file

from minivllm.config import EngineArgs, ModelSpec
from minivllm.kernels import ops_for
from minivllm.messages.sampling_params import SamplingParams
from minivllm.model.layers.matrix import Matrix
from minivllm.model.loading.gguf import GGUFSource
from minivllm.model.loading.gguf_blocks import FORMATS
from minivllm.model.loading.gguf_names import _USUAL as NAMES
from minivllm.model.quantization.grouped import Form, Grouped
from minivllm.text.tokenizer import load_tokenizer
from minivllm.utils.gguf import TYPES

PROMPT = [5, 9, 77, 120, 33, 8]
SPEC = ModelSpec.from_hf(transformers.LlamaConfig().to_dict() | {"architectures": ["LlamaForCausalLM"]})


def greedy(runner, count: int = 8) -> list[int]:
    runner.step({0: len(PROMPT)}, [runner.new(0, PROMPT, list(range(4)), SamplingParams(temperature=0.0))])
    for _ in range(count - 1):
        runner.step({0: 1})
    return runner.sequences[0]


@pytest.mark.parametrize("number", [number for number, kind in TYPES.items() if kind.name in FORMATS])
def test_block_formats(number: int) -> None:
    kind = TYPES[number]
    assert gguf.GGMLQuantizationType(number).name == kind.name
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (kind.block, kind.block_bytes)
    blocks = np.random.default_rng(number).integers(0, 256, (300, kind.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # random bytes are NaN scales too
        expected = quants.dequantize(blocks, gguf.GGMLQuantizationType(number))
    assert np.array_equal(FORMATS[kind.name].unpack(torch.from_numpy(blocks)).numpy(), expected, equal_nan=True)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_kept_packed(kind: str, tmp_path: Path) -> None:
    """In every form that holds it, within what 16 bits of a scale can say; multiplied as the gguf package unpacks it."""
    blocks, expected = random_blocks(kind, rows=40, columns=512)
    own = FORMATS[kind].form
    for form in {own, Form(8, own.group), Form(own.bits, 16), Form(8, 16)}:
        source = GGUFSource(tensor_file(tmp_path / "m.gguf", kind, blocks, expected.shape), SPEC, torch.bfloat16)
        name = "model.layers.0.mlp.up_proj."
        assert source.packed_form((name + "weight",)) == own
        source.keep_packed((name + "weight",), form)
        parts = [source.read(name + part) for part in ("values", "scales", "least")]
        assert [tuple(part.shape) for part in parts] == [source.shapes()[name + part] for part in ("values", "scales", "least")]
        ops = ops_for("cpu").gemm_grouped
        packed, weight = ops.pack(*parts, form.bits), torch.from_numpy(expected)
        torch.testing.assert_close(
            ops.rows(packed, torch.arange(40), torch.bfloat16),
            weight.bfloat16(),
            rtol=2**-7,
            atol=float(weight.abs().max()) / 2000,
        )
        for rows in (1, 20):  # two ways of multiplying
            x = torch.randn(rows, 512, dtype=torch.bfloat16)
            torch.testing.assert_close(
                ops.linear(x, packed).float(), x.float() @ weight.T, rtol=0.02, atol=float(weight.square().mean()) ** 0.5 / 3
            )
        source.close()
    assert error_kept_packed(kind) < 4e-4


def test_formats_that_are_multiplied_together(tmp_path: Path) -> None:
    """As in files of a mixed type: q and k of Q4_K with v of Q6_K take the larger form of both."""
    tensors = {}
    for part, kind in (("attn_q", "Q4_K"), ("attn_v", "Q6_K"), ("attn_k", "F32")):
        blocks, expected = random_blocks(kind, rows=8, columns=256) if kind != "F32" else (b"", np.zeros((8, 256), np.float32))
        number = next(number for number, known in TYPES.items() if known.name == kind)
        tensors[f"blk.0.{part}.weight"] = (number, (8, 256), blocks or expected.tobytes())
    path = tmp_path / "m.gguf"
    path.write_bytes(file_bytes(model_metadata("qwen2"), tensors))
    source = GGUFSource(path, SPEC, torch.bfloat16)
    q, k, v = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv")
    assert source.packed_form((q, q)) == Form(4, 32) and source.packed_form((q, v)) == Form(8, 16)
    assert source.packed_form((q, k)) is None and source.packed_form((q, "model.norm.weight")) is None
    source.close()


def hf_model(path: Path, kind: str) -> transformers.PreTrainedModel:
    """The same by the gguf package's dequantization and transformers, with q and k turned back one row after the other."""
    state, info = {}, {t.name: t for t in gguf.GGUFReader(path).tensors}
    for name, tensor in info.items():
        weight = np.array(quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        part = name.split(".")[-2]
        if kind == "llama" and part in ("attn_q", "attn_k"):
            turned = np.empty_like(weight)
            for row in range(len(weight)):
                head, place = divmod(row, 16)
                turned[head * 16 + place // 2 + place % 2 * 8] = weight[row]
            weight = turned
        prefix = f"model.layers.{name.split('.')[1]}." if name.startswith("blk") else ""
        state[prefix + name.split(".", 2)[-1].replace(part, NAMES[part]) if prefix else name.replace(part, NAMES[part])] = (
            torch.from_numpy(weight)
        )
    config = getattr(transformers, {"llama": "Llama", "qwen2": "Qwen2"}[kind] + "Config")(
        vocab_size=268, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    missing = model.load_state_dict(state, strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys
    model.tie_weights()
    return model


@pytest.mark.parametrize(("kind", "stored"), [("llama", "F32"), ("llama", "Q4_1"), ("llama", "Q8_0"), ("qwen2", "F16")])
def test_models_against_transformers(tmp_path: Path, make_runner, kind: str, stored: str) -> None:
    path = write_model(tmp_path / "m.gguf", kind, NUMBERS[stored])
    reference, known = hf_model(path, kind), list(PROMPT)
    with torch.inference_mode():
        for _ in range(8):
            known.append(int(reference(torch.tensor([known])).logits[0, -1, :266].argmax()))
    assert greedy(make_runner(path)) == known


def in_parts(path: Path, folder: Path) -> list[Path]:
    """The same model, written by the gguf package: a file of metadata, and others with eight tensors each."""
    folder.mkdir()
    writer = gguf.GGUFWriter(folder / path.name, "llama", split_max_tensors=8, small_first_shard=True)
    adders = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in model_metadata().items():
        if key != "general.architecture":
            adders.get(type(value), writer.add_array)(key, value)
    for tensor in gguf.GGUFReader(path).tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.iterdir())


def test_a_model_in_several_files_is_that_in_one(tmp_path: Path, make_runner) -> None:
    whole = write_model(tmp_path / "m.gguf", number=NUMBERS["Q4_1"])
    first, *others = in_parts(whole, tmp_path / "parts")
    assert [first.name, *(other.name for other in others)] == [f"m-0000{i}-of-00004.gguf" for i in (1, 2, 3, 4)]
    expected, tokenizer = EngineArgs(str(whole)).resolve(), load_tokenizer(whole)
    for named in (first.parent, first, others[1]):
        config = EngineArgs(str(named)).resolve()
        assert config.model.path == config.model.tokenizer == str(first)
        assert (config.spec, config.generation) == (expected.spec, expected.generation)
    found = load_tokenizer(first)
    assert (found.to_json(), found.chat_templates) == (tokenizer.to_json(), tokenizer.chat_templates)
    sources = [GGUFSource(path, expected.spec, torch.float32) for path in (first, whole)]
    assert sources[0].shapes() == sources[1].shapes()
    assert all(torch.equal(sources[0].read(name), sources[1].read(name)) for name in sources[1].shapes())
    for source in sources:
        source.close()
    assert greedy(make_runner(first.parent, dtype="bfloat16")) == greedy(make_runner(whole, dtype="bfloat16"))


def test_a_tensor_is_unpacked_in_bands_and_pieces(tmp_path: Path) -> None:
    blocks = np.random.default_rng(0).integers(0, 60, (5000, 18), dtype=np.uint8)
    blocks[:, 1] = 0x30  # a harmless scale
    tensors = {"blk.0.ffn_up.weight": (2, (100, 1600), blocks.tobytes())}
    path = tmp_path / "m.gguf"
    path.write_bytes(file_bytes(model_metadata(), tensors))
    torch.set_num_threads(3)
    source = GGUFSource(path, SPEC, torch.float32)
    expected = quants.dequantize(blocks, gguf.GGMLQuantizationType.Q4_0).reshape(100, 1600)
    assert np.array_equal(source.read("model.layers.0.mlp.up_proj.weight").numpy(), expected)
    source.close()


def test_dummy_weights_of_its_shapes(tmp_path: Path, make_runner) -> None:
    path = write_model(tmp_path / "m.gguf")
    assert len(greedy(make_runner(path, load_format="dummy"))) == len(PROMPT) + 8


def test_the_real_file_has_the_weights_of_its_folder(smollm2: Path) -> None:
    path = smollm2.with_suffix(".gguf")
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    source = GGUFSource(path, EngineArgs(str(path)).resolve().spec, torch.bfloat16)
    folder = load_file(smollm2 / "model.safetensors")
    assert set(source.shapes()) == set(folder)
    for name in folder:
        if name.startswith(("model.layers.0.", "model.layers.29.", "model.norm")):
            assert torch.equal(source.read(name).to(torch.bfloat16), folder[name]), name
    source.close()


PACKED = [("llama", "Q4_0"), ("llama", "Q4_1"), ("llama", "Q8_0"), ("qwen2", "Q4_1")]


@pytest.mark.parametrize(("kind", "stored"), PACKED)
def test_weights_kept_packed_are_those_unpacked(tmp_path: Path, load_worker, kind: str, stored: str) -> None:
    """With --quantization off and bfloat16; each matrix, read back a row at a time, against the gguf package."""
    path = write_model(tmp_path / "m.gguf", kind, NUMBERS[stored])
    model = load_worker(path, dtype="bfloat16")._runner._model
    reference = hf_model(path, kind).to(torch.bfloat16).state_dict()
    count = 0
    for name, layer in model.walk():
        if isinstance(layer, Matrix):
            assert isinstance(layer.scheme, Grouped)
            parts = model.weight_map.get(name.split(".")[-1], (name.split(".")[-1],))
            expected = torch.cat([reference[".".join([*name.split(".")[:-1], part, "weight"])] for part in parts])
            assert torch.equal(layer.scheme.rows(layer, torch.arange(layer.shape[0])), expected)
            for rows in (1, 20):  # two ways of multiplying
                x = torch.randn(rows, layer.shape[1], dtype=torch.bfloat16)
                torch.testing.assert_close(
                    layer.scheme.apply(layer, x, None).float(), x.float() @ expected.T.float(), rtol=0.02, atol=0.02
                )
            count += 1
    assert count == 9  # four in each layer, and the shared embedding


def test_what_is_kept_packed(tmp_path: Path, load_worker) -> None:
    def schemes(path: Path, **options) -> set[str]:
        model = load_worker(path, **options)._runner._model
        return {type(layer.scheme).__name__ for _, layer in model.walk() if isinstance(layer, Matrix)}

    packed = write_model(tmp_path / "m.gguf", number=NUMBERS["Q4_1"])
    assert schemes(packed, dtype="bfloat16") == {"Grouped"}
    assert schemes(packed, dtype="float32") == {"Unquantized"}
    assert schemes(packed, dtype="bfloat16", quantization="int8") == {"Int8"}
    assert schemes(write_model(tmp_path / "n.gguf", number=NUMBERS["F16"]), dtype="bfloat16") == {"Unquantized"}
