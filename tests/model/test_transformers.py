"""Models without a family of ours, by transformers' modelling code: greedy tokens and logprobs as transformers has them."""

import json
import random
from uuid import uuid4

import pytest
import torch
import transformers
from distributed.ranks import together
from model.conftest import BLOCK, Checkpoint, Runner
from model.quantization.test_checkpoints import error, schemes, tiny, write
from model.quantization.writers import GPTQ
from model.test_families import GREEDY, SHORT, check, prompt_of
from model.tiny_configs import tiny_model
from safetensors.torch import load_file, save_file

from minivllm import LLM, SamplingParams
from minivllm.config import EngineArgs
from minivllm.distributed.groups import Layout
from minivllm.errors import ConfigError
from minivllm.kernels import extension_error
from minivllm.worker.worker import Worker

SHOWN = {
    "apertus": "Apertus 8B, 70B",
    "arcee": "Arcee AFM",
    "bitnet": "BitNet b1.58",
    "codegen": "CodeGen",
    "cwm": "Code World Model",
    "dots1": "dots.llm1",
    "gpt_bigcode": "StarCoder, SantaCoder",
    "helium": "Helium",
    "hunyuan_v1_dense": "Hunyuan dense",
    "hunyuan_v1_moe": "Hunyuan MoE",
    "jais2": "Jais 2",
    "minicpm3": "MiniCPM 3",
    "nanochat": "nanochat",
    "persimmon": "Persimmon",
    "vaultgemma": "VaultGemma",
}


def save(model_type: str, folder) -> Checkpoint:
    model = tiny_model(model_type)
    model.save_pretrained(folder)
    return Checkpoint(folder, model)


def run(checkpoint, make_runner, **options) -> None:
    """Whole prompts, chunks beside decoding, blocks in no order, and a prompt that begins with another one's blocks."""
    runner = make_runner(checkpoint.folder, max_model_len=64, **options)
    blocks = list(range(48))
    random.Random(1).shuffle(blocks)
    prompts = {0: prompt_of(21, 21), 1: prompt_of(34, 34), 3: prompt_of(10, 10)}
    given = {0: blocks[:9], 1: blocks[9:20], 3: blocks[20:26], 2: blocks[9:14] + blocks[26:30]}
    runner.step({0: 21}, [runner.new(0, prompts[0], given[0], GREEDY)])
    runner.step({0: 1, 3: 4, 1: 9}, [runner.new(slot, prompts[slot], given[slot], GREEDY) for slot in (3, 1)])
    runner.step({3: 6, 1: 25, 0: 1})
    prompts[2] = prompts[1][:20] + prompt_of(3, 5)
    runner.step({1: 1, 2: 3, 3: 1}, [runner.new(2, prompts[2], given[2], SHORT, computed=20)])
    for _ in range(6):
        runner.step(dict.fromkeys((1, 0, 3, 2), 1))
    for slot, prompt in prompts.items():
        check(checkpoint, runner, slot, prompt)


@pytest.mark.parametrize("model_type", SHOWN)
def test_as_transformers_computes_it(model_type, tmp_path, make_runner):
    run(save(model_type, tmp_path), make_runner)


@pytest.mark.parametrize("family", ["llama3", "qwen2", "gemma3", "gpt-oss", "deepseek-v3", "dynamic"])
def test_both_implementations_of_a_family_are_the_same(family, saved, make_runner):
    run(saved(family), make_runner, model_impl="transformers")


def test_int8_weights_are_those_of_our_families(saved, make_runner):
    checkpoint, prompt = saved("llama-tied"), prompt_of(20, 4)
    found = []
    for options in ({}, {"quantization": "int8"}, {"quantization": "int8", "model_impl": "transformers"}):
        found.append(make_runner(checkpoint.folder, **options).score(prompt))
    exact, ours, theirs = found
    assert (theirs - ours).abs().max() < 0.1 * (ours - exact).abs().max()


def test_quantized_checkpoints_stay_packed(tmp_path, make_runner):
    checkpoint = write(tmp_path / "model", GPTQ(), tiny("HeliumConfig", head_dim=32))
    assert error(make_runner(checkpoint.folder), checkpoint) < 2e-5
    runner = make_runner(checkpoint.folder, dtype="bfloat16")
    assert schemes(runner) == ({"Grouped"} if extension_error() is None else {"Unquantized"})
    assert error(runner, checkpoint) < 0.05


def test_bfloat16_stays_close(tmp_path, make_runner):
    checkpoint = save("arcee", tmp_path)
    prompt = prompt_of(20, 4)
    runner = make_runner(checkpoint.folder, dtype="bfloat16")
    exact = checkpoint.logprobs(prompt)[:19]
    with torch.inference_mode():
        theirs = checkpoint.reference.bfloat16()(torch.tensor([prompt])).logits[0].float().log_softmax(-1)[:19]
    assert (runner.score(prompt) - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean() + 1e-3


def test_engine_with_a_cache_that_is_too_small(tmp_path, smollm2):
    """Common beginnings, chunks and preemption, through all of the engine; the tokenizer is anyone's."""
    checkpoint = save("arcee", tmp_path)
    options = {
        "max_model_len": 64,
        "block_size": 4,
        "num_gpu_blocks_override": 24,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
    }
    prompts = [prompt_of(21, 1) + prompt_of(2 + i, i) for i in range(6)]
    with LLM(str(tmp_path), tokenizer=str(smollm2), dtype="float32", cpu_threads=1, **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        results = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.outputs[0].token_ids) == checkpoint.greedy(prompt, 20)


@pytest.mark.parametrize("model_type", ["arcee", "dots1", "minicpm3"])
def test_ranks_that_share_layers(model_type, tmp_path):
    """Heads and what lies in feed-forward layers; each has all experts of dots1, and all of the attention of minicpm3."""
    checkpoint, prompt = save(model_type, tmp_path), prompt_of(20, 4)
    name, layout = f"test-{uuid4().hex}", Layout(2)

    def rank(index: int) -> tuple[list[int], set[int]]:
        options = {"dtype": "float32", "block_size": BLOCK, "cpu_threads": 1, "max_num_seqs": 2, "tensor_parallel_size": 2}
        worker = Worker(EngineArgs(model=str(tmp_path), **options).resolve(), layout.place(index), name)
        worker.init_device()
        worker.load_model()
        worker.allocate_kv(16)
        runner = Runner(worker, 16)
        runner.step({0: 12}, [runner.new(0, prompt, list(range(10)), SHORT)])
        runner.step({0: 8})
        for _ in range(5):
            runner.step({0: 1})
        sizes = {layer.shape[0] for path, layer in worker._runner._model.walk() if path.endswith("mlp.up_proj")}
        worker.shutdown()
        return runner.sequences[0], sizes

    (one, first), (two, second) = together(2, rank)
    assert one == two == prompt + checkpoint.greedy(prompt, 6)
    assert (first, second) == ({32}, {64})


def test_tensors_of_no_use_are_named(tmp_path, load_worker, caplog):
    save("helium", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors") | {"model.mtp.weight": torch.zeros(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    load_worker(tmp_path)
    assert "HeliumForCausalLM has no use for 1 tensors of the checkpoint: model.mtp.weight" in caplog.text


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("mamba", "it keeps a recurrent state in place of keys and values"),
        ("lfm2", "it has layers of type 'conv', which keep something else than keys and values"),
        ("minimax", "it has layers of type 'linear_attention', which keep something else than keys and values"),
        ("gpt_neo", "its attention does not go through transformers' attention interface"),
    ],
)
def test_what_cannot_work_says_why(model_type, reason, tmp_path, load_worker):
    checkpoint = save(model_type, tmp_path)
    with pytest.raises(ConfigError) as e:
        load_worker(checkpoint.folder)
    architecture = type(checkpoint.reference).__name__
    assert str(e.value) == f"Model architectures ['{architecture}'] are not supported for now: {reason}."


def test_encoders_with_decoders_are_refused(tmp_path):
    transformers.T5Config(architectures=["T5ForConditionalGeneration"]).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="for now: it is an encoder with a decoder"):
        EngineArgs(model=str(tmp_path)).resolve()


def test_implementation_is_chosen_by_the_architecture(saved, tmp_path, load_worker, caplog):
    save("helium", tmp_path)
    caplog.set_level("INFO", "minivllm")
    assert EngineArgs(model=str(tmp_path)).resolve().model.model_impl == "transformers"
    assert "HeliumForCausalLM has no family here: running transformers' modelling code (--model-impl)." in caplog.text
    assert EngineArgs(model=str(saved("llama2").folder)).resolve().model.model_impl == "minivllm"
    with pytest.raises(ConfigError, match=r"\['HeliumForCausalLM'\] are not supported for now. Supported architectures: "):
        load_worker(tmp_path, model_impl="minivllm")


def test_code_that_comes_with_the_model_runs_only_if_asked_for(tmp_path, make_runner):
    """A folder with its own modelling code: here transformers' of Helium, under other names."""
    checkpoint = save("helium", tmp_path)
    (tmp_path / "modeling_own.py").write_text(OWN_CODE)
    config = json.loads((tmp_path / "config.json").read_text())
    own = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    config |= {"auto_map": own, "model_type": "own_helium", "architectures": ["OwnForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="its code comes with the model, and runs only with --trust-remote-code"):
        make_runner(tmp_path)
    run(checkpoint, make_runner, trust_remote_code=True)


OWN_CODE = """
from transformers import HeliumConfig, HeliumForCausalLM

class OwnConfig(HeliumConfig):
    model_type = "own_helium"

class OwnForCausalLM(HeliumForCausalLM):
    config_class = OwnConfig
"""
