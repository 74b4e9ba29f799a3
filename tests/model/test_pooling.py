"""Encoders, classifiers and decoders as embedders against transformers in fp32: alone, in a mixed batch, and in chunks."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

from minivllm.config.engine_args import EngineArgs
from minivllm.core.startup import build_core
from minivllm.errors import ConfigError
from minivllm.kernels import extension_error
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.request import EngineRequest
from minivllm.messages.sampling_params import SamplingParams

SIZES = {"vocab_size": 160, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4, "num_attention_heads": 6}
COMMON = SIZES | {"max_position_embeddings": 64, "initializer_range": 0.2}
ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": {"pad_token_id": 0},
    "Roberta": {"type_vocab_size": 1, "max_position_embeddings": 66, "pad_token_id": 1},
    "XLMRoberta": {"type_vocab_size": 1, "hidden_act": "gelu_new", "pad_token_id": 1},
    "ModernBert": {"local_attention": 8, "norm_bias": True, "attention_bias": True, "pad_token_id": 0},
}
DECODERS: dict[str, dict[str, Any]] = {
    "Llama": {"num_key_value_heads": 2},
    "Qwen2": {"num_key_value_heads": 2},
    "Mistral": {"num_key_value_heads": 6, "sliding_window": 7},
}
LENGTHS = (1, 30, 9, 17, 60)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[Path, transformers.PreTrainedModel]]:
    """Writes a random checkpoint; returns its folder and transformers' model of it."""

    def write(family: str, use: str, **changes: Any) -> tuple[Path, transformers.PreTrainedModel]:
        torch.manual_seed(len(family))
        config = getattr(transformers, f"{family}Config")(**COMMON | {**ENCODERS, **DECODERS}[family] | changes)
        model = getattr(transformers, family + use)(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(0, 0.2)
        model.save_pretrained(tmp_path)
        return tmp_path, model

    return write


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(3, 160) for _ in range(length)] for length in lengths]


def pool(folder: Path, texts: list[list[int]], types: list[int | None] | None = None, task: str | None = None, **options: Any):
    """fp32 results of one core that gets all texts at once."""
    options = {"dtype": "float32", "cpu_threads": 1, "block_size": 4, "kv_cache_memory_bytes": "4MB", **options}
    core, _ = build_core(EngineArgs(str(folder), **options).resolve())
    last_only = core.scheduler.kv_cache.enable_prefix_caching and "pooler_config" not in options and task is None
    params = PoolingParams(task=task, skip_reading_prefix_cache=not last_only)
    starts = types or [None] * len(texts)
    core.add(
        [
            EngineRequest(str(i), ids, SamplingParams(max_tokens=0), [], [], 0.0, pooling_params=params, token_type_start=start)
            for i, (ids, start) in enumerate(zip(texts, starts, strict=True))
        ]
    )
    found = {}
    while core.has_work():
        step = core.step()
        for output in step.outputs if step else ():
            assert output.error is None
            found[int(output.request_id)] = torch.tensor(output.pooled.tolist())
    core.shutdown()
    return [found[i] for i in range(len(texts))]


@torch.inference_mode()
def hidden(model: transformers.PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).last_hidden_state[0]


def check(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@pytest.mark.skipif(extension_error() is not None, reason="the extension minivllm._cpu is not built")
@pytest.mark.parametrize("family", ENCODERS)
def test_encoders_are_one_recorded_program(family: str, make) -> None:
    core, _ = build_core(EngineArgs(str(make(family, "Model")[0]), dtype="float32", kv_cache_memory_bytes="4MB").resolve())
    assert core.executor._live_worker()._runner._graphs._program is not None
    core.shutdown()


@pytest.mark.parametrize("family", ENCODERS)
def test_encoders_alone_and_in_a_mixed_batch(family: str, make) -> None:
    folder, model = make(family, "Model")
    texts = prompts()
    expected = [F.normalize(hidden(model, ids)[0], dim=-1) for ids in texts]  # the first token, by default
    check(pool(folder, texts), expected)
    check(pool(folder, texts[1:2]), expected[1:2])


@pytest.mark.parametrize("family", ["Bert", "ModernBert"])
def test_divided_among_two_workers(family: str, make) -> None:
    folder, model = make(family, "Model")
    texts = prompts((30, 9))
    check(pool(folder, texts, tensor_parallel_size=2), [F.normalize(hidden(model, ids)[0], dim=-1) for ids in texts])


@pytest.mark.parametrize("family", ["Bert", "ModernBert"])
def test_the_layers_of_a_masked_language_model(family: str, make) -> None:
    folder, model = make(family, "ForMaskedLM")
    texts = prompts((20,))
    check(pool(folder, texts), [F.normalize(hidden(model.base_model, ids)[0], dim=-1) for ids in texts])


def sentence_transformers(folder: Path, *kinds: str, normalize: bool = True, max_length: int = 50) -> None:
    """The files beside a checkpoint that say how to pool; "Dense" among `kinds` is a layer."""
    modes = {f"pooling_mode_{kind}": True for kind in kinds if kind != "Dense"}
    modules = ["Transformer", "Pooling", *(["Dense"] if "Dense" in kinds else []), *(["Normalize"] if normalize else [])]
    paths = ["" if kind == "Transformer" else f"{index}_{kind}" for index, kind in enumerate(modules)]
    listed = [{"idx": i, "path": p, "type": f"x.{k}"} for i, (p, k) in enumerate(zip(paths, modules, strict=True))]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_length}))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": False, **modes}))
    if "Dense" in kinds:
        torch.manual_seed(5)
        (folder / "2_Dense").mkdir()
        config = {"in_features": 48, "out_features": 20, "activation_function": "torch.nn.modules.activation.Tanh"}
        (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
        weights = {"linear.weight": torch.randn(20, 48), "linear.bias": torch.randn(20)}
        save_file(weights, folder / "2_Dense" / "model.safetensors")


def weighted(states: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(1, len(states) + 1)[:, None]
    return (states * weights).sum(0) / weights.sum()


POOLINGS = {
    "cls_token": lambda states: states[0],
    "mean_tokens": lambda states: states.mean(0),
    "max_tokens": lambda states: states.amax(0),
    "lasttoken": lambda states: states[-1],
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "weightedmean_tokens": weighted,
}


@pytest.mark.parametrize("kind", POOLINGS)
def test_sentence_transformers_files(kind: str, make) -> None:
    folder, model = make("Bert", "Model")
    sentence_transformers(folder, kind, normalize=kind == "mean_tokens")
    expected = [POOLINGS[kind](hidden(model, ids)) for ids in prompts((5, 40))]
    check(pool(folder, prompts((5, 40))), [F.normalize(x, dim=-1) if kind == "mean_tokens" else x for x in expected])
    assert EngineArgs(str(folder)).resolve().model.max_model_len == 50


def test_several_poolings_side_by_side_and_a_dense_layer(make) -> None:
    folder, model = make("Bert", "Model")
    sentence_transformers(folder, "cls_token", "mean_tokens", normalize=False)
    states = hidden(model, prompts((12,))[0])
    check(pool(folder, prompts((12,))), [torch.cat((states[0], states.mean(0)))])
    for path in ("modules.json", "1_Pooling/config.json"):
        (folder / path).unlink()
    (folder / "1_Pooling").rmdir()
    sentence_transformers(folder, "mean_tokens", "Dense")
    torch.manual_seed(5)
    weight, bias = torch.randn(20, 48), torch.randn(20)
    check(pool(folder, prompts((12,))), [F.normalize(torch.tanh(weight @ states.mean(0) + bias), dim=-1)])
    assert EngineArgs(str(folder)).resolve().pooling.width == 20


def test_vectors_of_all_tokens(make) -> None:
    folder, model = make("Bert", "Model")
    texts = prompts((1, 13))
    check(pool(folder, texts, task="token_embed"), [F.normalize(hidden(model, ids), dim=-1) for ids in texts])


@pytest.mark.parametrize(
    ("family", "changes"),
    [("Bert", {}), ("Bert", {"num_labels": 1}), ("Roberta", {"problem_type": "multi_label_classification"}),
     ("ModernBert", {"classifier_pooling": "cls"}), ("ModernBert", {"classifier_pooling": "mean"}), ("Llama", {})],
)  # fmt: skip
def test_classifiers(family: str, changes: dict[str, Any], make) -> None:
    folder, model = make(family, "ForSequenceClassification", **{"num_labels": 3, "pad_token_id": 0} | changes)
    texts = prompts((30, 9))
    with torch.inference_mode():
        logits = [model(torch.tensor([ids])).logits[0] for ids in texts]
    sigmoid = changes.get("num_labels") == 1 or "problem_type" in changes
    check(pool(folder, texts), [x.sigmoid() if sigmoid else x.softmax(-1) for x in logits])


def test_pairs_are_told_apart_by_token_types(make) -> None:
    folder, model = make("Bert", "ForSequenceClassification", num_labels=1)
    texts, starts = prompts((20, 11, 6)), [8, None, 5]
    expected = []
    for ids, start in zip(texts, starts, strict=True):
        types = [int(start is not None and index >= start) for index in range(len(ids))]
        with torch.inference_mode():
            expected.append(model(torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0].sigmoid())
    check(pool(folder, texts, starts), expected)


@pytest.mark.parametrize("family", DECODERS)
def test_decoders_by_their_last_token(family: str, make) -> None:
    folder, model = make(family, "ForCausalLM")
    texts = prompts()
    texts.append([*texts[4][:40], 5, 6])  # begins as another does, and finds that in the cache
    expected = [F.normalize(hidden(model.model, ids)[-1], dim=-1) for ids in texts]
    chunked = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "runner": "pooling"}
    check(pool(folder, texts, **chunked), expected)
    mean = [F.normalize(hidden(model.model, ids).mean(0), dim=-1) for ids in texts]
    check(pool(folder, texts, pooler_config={"pooling_type": "MEAN"}, **chunked), mean)
    check(
        pool(folder, texts[:2], task="token_embed", **chunked), [F.normalize(hidden(model.model, i), dim=-1) for i in texts[:2]]
    )


def test_a_decoder_without_its_head(make) -> None:
    folder, model = make("Llama", "Model")
    check(pool(folder, prompts((9,))), [F.normalize(hidden(model, prompts((9,))[0])[-1], dim=-1)])


def test_half_precision_stays_close(make) -> None:
    folder, model = make("Bert", "Model")
    for dtype in ("bfloat16", "float16"):
        for ours, ids in zip(pool(folder, prompts(), dtype=dtype), prompts(), strict=True):
            assert F.cosine_similarity(ours, hidden(model, ids)[0], dim=0) > 0.999


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runner": "generate"}, "This model does not support `--runner generate`: BertModel only pools."),
        ({"pooler_config": {"pooling_type": "STEP"}}, "pooling type 'STEP' is not supported"),
        ({"pooler_config": {"kind": "MEAN"}}, "--pooler-config has no 'kind'"),
        ({"convert": "classify"}, "lacks classifier.weight, classifier.bias"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str, make) -> None:
    folder, _ = make("Bert", "Model")
    with pytest.raises(ConfigError, match=re.escape(message)):
        pool(folder, prompts((3,)), **options)


def test_choices_of_runner_and_conversion(make) -> None:
    folder, _ = make("Llama", "ForCausalLM")

    def resolved(**options: Any) -> tuple[str, str | None]:
        config = EngineArgs(str(folder), **options).resolve()
        return config.model.runner, config.pooling and config.pooling.task

    assert resolved() == ("generate", None)
    assert resolved(runner="pooling") == resolved(convert="embed") == ("pooling", "embed")
    assert resolved(convert="classify") == ("pooling", "classify")
    for options in ({"runner": "generate", "convert": "embed"}, {"runner": "pooling", "convert": "none"}):
        with pytest.raises(ConfigError, match="--convert"):
            resolved(**options)
    with pytest.raises(ConfigError, match="--pooler-config is for pooling models"):
        resolved(pooler_config={"pooling_type": "MEAN"})
    sentence_transformers(folder, "lasttoken", normalize=False)
    assert resolved() == ("pooling", "embed")
