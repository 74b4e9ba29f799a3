"""Folders with a file set for each tensor-parallel rank: written by ranks, and read by them to the same model."""

from pathlib import Path

import pytest
import torch
from distributed.ranks import together
from model.test_tensor_parallel import Workers, divided, logprobs_of, run_and_check  # noqa: F401

from minivllm import LLM, SamplingParams
from minivllm.config.engine_args import EngineArgs
from minivllm.errors import ConfigError
from minivllm.kernels import extension_error

pytestmark = pytest.mark.skipif(extension_error() is not None, reason="the extension minivllm._cpu is not built")


def save(workers: Workers, folder: Path) -> Path:
    together(len(workers.ranks), lambda rank: workers.ranks[rank].save_sharded_state(str(folder), 20_000))
    return folder


@pytest.mark.parametrize(
    ("family", "size", "options"),
    [
        ("qwen2", 2, {}),
        ("gpt2", 2, {}),
        ("gpt-neox", 2, {}),
        ("deepseek-v3", 2, {}),
        ("mixtral", 2, {"enable_expert_parallel": True}),
        ("llama-tied", 1, {}),
        ("llama3", 1, {"model_impl": "transformers"}),
    ],
)
def test_what_ranks_write_they_read(family, size, options, saved, divided, tmp_path):  # noqa: F811
    checkpoint = saved(family)
    folder = save(divided(checkpoint.folder, size, **options).worker, tmp_path / "saved")
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    assert {name.rpartition("-part-")[0] for name in names} == {f"model-rank-{rank}" for rank in range(size)}
    assert len(names) > size
    again = divided(folder, size, load_format="sharded_state", **options)
    run_and_check(checkpoint, again)
    if family == "qwen2":  # what has been read so can be written again
        twice = save(again.worker, tmp_path / "twice")
        assert [(twice / name).read_bytes() for name in names] == [(folder / name).read_bytes() for name in names]


def test_quantized_on_the_way(saved, divided, tmp_path):  # noqa: F811
    plain = saved("llama3").folder
    int8 = divided(plain, quantization="int8")
    folder = save(int8.worker, tmp_path / "saved")
    assert torch.equal(logprobs_of(divided(folder, quantization="int8")), logprobs_of(int8))


def test_offline(saved, smollm2, tmp_path):
    checkpoint, prompt = saved("qwen2"), [5, 9, 77, 120, 33, 8]
    options = {"dtype": "float32", "cpu_threads": 1, "max_model_len": 64, "tensor_parallel_size": 2, "tokenizer": str(smollm2)}
    with LLM(str(checkpoint.folder), **options) as llm:
        llm.save_sharded_state(str(tmp_path / "saved"))
        with pytest.raises(ConfigError, match="is there and not an empty folder"):
            llm.save_sharded_state(str(tmp_path / "saved"))
    with LLM(str(tmp_path / "saved"), **options) as llm:
        assert llm.engine.config.load.load_format == "sharded_state"
        (found,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), use_tqdm=False)
        assert found.outputs[0].token_ids == checkpoint.greedy(prompt, 5)


def refusal(folder: Path, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        EngineArgs(str(folder), **options).resolve()
    assert "\n" not in caught.value.message
    return caught.value.message


def test_other_workers_than_those_that_wrote(saved, divided, tmp_path):  # noqa: F811
    folder = save(divided(saved("mixtral").folder).worker, tmp_path / "saved")
    assert refusal(folder).endswith("read by as many (--tensor-parallel-size 2, not 1 in 1).")
    assert "--tensor-parallel-size 2, not 2 in 2" in refusal(folder, tensor_parallel_size=2, pipeline_parallel_size=2)
    with pytest.raises(ConfigError, match=r"does not fit its config\.json: model\.layers\.0.*is expected"):
        divided(folder, enable_expert_parallel=True)
    for path in folder.glob("model-rank-0-*"):
        path.unlink()
    assert refusal(folder, tensor_parallel_size=2) == f"{folder} lacks model-rank-0-part-*.safetensors."
    assert "no model-rank-*-part-*.safetensors file" in refusal(saved("mixtral").folder, load_format="sharded_state")
