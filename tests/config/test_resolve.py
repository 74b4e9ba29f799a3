"""From flat options to a complete `EngineConfig`, and the one line that says why not."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minivllm.config import AsyncEngineArgs, EngineArgs, EngineConfig
from minivllm.config.quantization import StoredWeights
from minivllm.errors import ConfigError

MakeModel = Callable[..., str]


def test_defaults(make_model: MakeModel) -> None:
    folder = make_model()
    config = EngineArgs(folder).resolve()
    assert config.model.path == config.model.tokenizer == folder
    assert config.model.served_model_names == (folder,)
    assert (config.model.dtype, config.model.max_model_len, config.model.seed) == ("bfloat16", 4096, None)
    assert (config.cache.block_size, config.cache.enable_prefix_caching, config.cache.kv_cache_dtype) == (16, True, "bfloat16")
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (128, 2048)
    assert config.scheduler.max_num_queued_reqs is None
    assert config.device.device == "cpu" and config.device.cpu_threads >= 1
    assert config.generation.eos_token_ids == (2,) and config.generation.defaults == {}


def test_a_resolved_config_holds_nothing_to_be_chosen_yet(make_model: MakeModel) -> None:
    config = EngineArgs(make_model()).resolve()
    for section in dataclasses.fields(config):
        if getattr(config, section.name) is None:  # the model does not pool
            continue
        for field, value in dataclasses.asdict(getattr(config, section.name)).items():
            assert value not in ("auto", "") or field in ("load_format", "generation_config"), f"{field} is {value!r}"
            assert value != -1 or field == "max_logprobs", f"{field} is {value!r}"


def test_it_survives_the_way_to_the_core_process(make_model: MakeModel) -> None:
    config = EngineArgs(
        make_model(files={"generation_config.json": {"temperature": 0.6, "eos_token_id": [5, 6]}}),
        served_model_name=["a", "b"],
        hf_overrides={"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
        kv_cache_memory_bytes="1GiB",
    ).resolve()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config
    assert config.model.served_model_names == ("a", "b") and config.cache.kv_cache_memory_bytes == 2**30
    assert config.model.max_model_len == 8192


def test_values_may_be_text_and_none_means_not_given(make_model: MakeModel) -> None:
    config = EngineArgs(make_model(), max_model_len="2K", block_size="32", seed=None).resolve()
    assert (config.model.max_model_len, config.cache.block_size, config.model.seed) == (2048, 32, None)


def test_attributes_are_the_options() -> None:
    args = EngineArgs("m", max_num_seqs=4)
    assert (args.model, args.max_num_seqs, args.block_size) == ("m", 4, 16)
    with pytest.raises(AttributeError):
        _ = args.modle


def test_keys_are_not_shown() -> None:
    args = AsyncEngineArgs("m", api_key=["hidden-key"], port=1)
    assert "hidden-key" not in repr(args) + repr(args.server)
    assert args.server.api_key == ("hidden-key",)


@pytest.mark.parametrize(
    ("checkpoint", "asked", "dtype"),
    [
        ("bfloat16", "auto", "bfloat16"),
        ("float16", "auto", "float16"),
        ("float32", "auto", "bfloat16"),
        ("bfloat16", "float", "float32"),
        ("bfloat16", "half", "float16"),
    ],
)
def test_dtype(make_model: MakeModel, checkpoint: str, asked: str, dtype: str) -> None:
    config = EngineArgs(make_model(torch_dtype=checkpoint), dtype=asked).resolve()
    assert config.model.dtype == config.cache.kv_cache_dtype == dtype
    assert config.spec.dtype == checkpoint


def test_gemma_in_float16(make_model: MakeModel) -> None:
    """Its activations are too large for that."""
    model = make_model(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", torch_dtype="float16")
    assert EngineArgs(model).resolve().model.dtype == "bfloat16"
    refused("The model type 'gemma3_text' does not support float16. Reason: Numerical inst", model=model, dtype="half")


def test_auto_length_is_remembered(make_model: MakeModel) -> None:
    model = make_model()
    assert not EngineArgs(model).resolve().model.max_model_len_auto
    config = EngineArgs(model, max_model_len="auto").resolve()
    assert config.model.max_model_len_auto and config.model.max_model_len == 4096


def test_the_tokenizer_may_limit_the_length(make_model: MakeModel) -> None:
    assert (
        EngineArgs(make_model(files={"tokenizer_config.json": {"model_max_length": 1024}})).resolve().model.max_model_len
        == 1024
    )
    huge = {"tokenizer_config.json": {"model_max_length": 1000000000000000019884624838656}}
    assert EngineArgs(make_model(files=huge)).resolve().model.max_model_len == 4096


def test_hf_overrides_may_raise_the_length(make_model: MakeModel) -> None:
    config = EngineArgs(make_model(), hf_overrides={"max_position_embeddings": 9000}, max_model_len=9000).resolve()
    assert config.model.max_model_len == 9000


_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": {**_LLAMA3, "rope_theta": 500.0}},
        {"rope_scaling": _LLAMA3, "rope_theta": 500.0},
        {"rope_scaling": None, "rope_theta": 500.0},
    ],
    ids=str,
)
def test_hf_overrides_of_rope_hold_under_every_name(make_model: MakeModel, config: dict[str, Any]) -> None:
    model = make_model(**config)
    for over in ("rope_parameters", "rope_scaling"):
        for kind in ("rope_type", "type"):
            rope = EngineArgs(model, hf_overrides={over: {kind: "yarn", "factor": 2.0}}).resolve().spec.layers[0].rope
            assert rope is not None and (rope.type, rope.factor, rope.theta) == ("yarn", 2.0, 500.0)
    rope = EngineArgs(model, hf_overrides={"rope_theta": 9.0}).resolve().spec.layers[0].rope
    assert rope is not None and rope.theta == 9.0 and (rope.type == "llama3") == (config.get("rope_scaling", 0) is not None)


def test_hf_overrides_of_rope_are_of_full_attention_where_kinds_differ(make_model: MakeModel) -> None:
    ropes = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    gemma3 = {"architectures": ["Gemma3ForCausalLM"], "rope_parameters": ropes, "layer_types": [*ropes], "sliding_window": 8}
    layers = EngineArgs(make_model(**gemma3), hf_overrides={"rope_theta": 5.0}).resolve().spec.layers
    assert [layer.rope.theta for layer in layers if layer.rope is not None] == [5.0, 1e4]


@pytest.mark.parametrize(
    ("options", "seqs", "tokens"),
    [
        ({"max_num_seqs": 4000}, 4000, 4000),
        ({"max_num_batched_tokens": 64}, 64, 64),
        ({"max_num_batched_tokens": "8k"}, 128, 8000),
        ({"enable_chunked_prefill": False}, 128, 4096),
        ({"enable_chunked_prefill": False, "max_model_len": 100}, 128, 2048),
    ],
)
def test_step_size(make_model: MakeModel, options: dict[str, Any], seqs: int, tokens: int) -> None:
    scheduler = EngineArgs(make_model(), **options).resolve().scheduler
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (seqs, tokens)
    assert scheduler.max_num_batched_tokens_auto == (
        "max_num_batched_tokens" not in options and "enable_chunked_prefill" not in options
    )


def test_the_queue_is_bounded_in_the_server_only(make_model: MakeModel) -> None:
    model = make_model()
    assert AsyncEngineArgs(model).resolve().scheduler.max_num_queued_reqs == 4096
    assert AsyncEngineArgs(model, max_num_queued_reqs=0).resolve().scheduler.max_num_queued_reqs is None
    assert EngineArgs(model, max_num_queued_reqs=7).resolve().scheduler.max_num_queued_reqs == 7


def test_threads(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setenv("MINIVLLM_CPU_THREADS", "3")
    assert EngineArgs(model).resolve().device.cpu_threads == 3
    assert EngineArgs(model, cpu_threads=5).resolve().device.cpu_threads == 5
    monkeypatch.setenv("MINIVLLM_CPU_THREADS", "many")
    with pytest.raises(ConfigError, match="MINIVLLM_CPU_THREADS must be an integer"):
        EngineArgs(model).resolve()


def test_generation_config(make_model: MakeModel, tmp_path: Path) -> None:
    content = {"temperature": 0.6, "top_p": 0.9, "top_k": None, "max_new_tokens": 99, "do_sample": True, "eos_token_id": [7, 8]}
    model = make_model(files={"generation_config.json": content})
    auto = EngineArgs(model).resolve().generation
    assert auto.defaults == {"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 99} and auto.eos_token_ids == (7, 8)
    none = EngineArgs(model, generation_config="vllm").resolve().generation
    assert none.defaults == {} and none.eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"top_k": 3}')
    assert EngineArgs(model, generation_config=str(tmp_path)).resolve().generation.defaults == {"top_k": 3}


@pytest.mark.parametrize("token", ["<end>", {"content": "<end>"}])
def test_the_tokenizers_own_end_counts_too(make_model: MakeModel, token: object) -> None:
    files = {
        "tokenizer_config.json": {"eos_token": token},
        "tokenizer.json": {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 9, "content": "<end>", "special": True}]},
    }
    assert EngineArgs(make_model(files=files)).resolve().generation.eos_token_ids == (2, 9)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        ({"model": {"vocab": {"a": 0, ":998": 1, "b": 2}}}, 3),
        ({"model": {"vocab": {"a": 0, "b": 2, "c": 1}}, "added_tokens": [{"id": 9, "content": "x"}]}, 10),
        ({"model": {"vocab": {"b": 999, "a": 0}}}, 1000),
        ({"model": {"vocab": {"a": 0, "b": 1600}}}, 1000),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 999, "content": "x"}]}, 1000),
        ({"model": {"vocab": [["a:1", -1.5], ["b", -2.0]]}}, 2),
        ({"model": {"vocab": {}}}, None),
        ({"model": {"type": "BPE"}}, None),
        ({}, None),
    ],
)
def test_the_number_of_tokens_is_the_tokenizers(make_model: MakeModel, tokenizer: object, expected: int | None) -> None:
    assert EngineArgs(make_model(files={"tokenizer.json": tokenizer})).resolve().generation.num_tokens == expected


def test_without_a_tokenizer_the_number_of_tokens_is_not_known(make_model: MakeModel) -> None:
    assert EngineArgs(make_model()).resolve().generation.num_tokens is None


def refused(message: str, **options: Any) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        AsyncEngineArgs(**options).resolve()
    assert "\n" not in caught.value.message


def test_refused_by_name_or_range() -> None:
    refused("unknown option 'modle': did you mean 'model'", modle="m")
    refused("block_size must be at least 1, got 0", block_size=0)
    refused("dtype must be one of auto, float32, bfloat16, float16, got 'int8'", dtype="int8")
    refused("gpu_memory_utilization must be at most 1, got 1.5", gpu_memory_utilization=1.5)
    refused("gpu_memory_utilization must be greater than 0", gpu_memory_utilization=0)
    refused("max_model_len must be at least 1, got -2", max_model_len=-2)
    refused("port must be at most 65535", port=65536)
    refused("hf_overrides must be JSON", hf_overrides="{")
    refused("no model given")


def test_refused_model(make_model: MakeModel, tmp_path: Path) -> None:
    refused("model folder /no/such/folder does not exist", model="/no/such/folder")
    refused("has no config.json", model=str(tmp_path))
    (tmp_path / "file").touch()
    refused("is a file: give the folder of the model", model=str(tmp_path / "file"))
    model = make_model()
    refused("tokenizer folder ./none does not exist", model=model, tokenizer="./none")
    (Path(model) / "config.json").write_text("{")
    refused("config.json is not JSON", model=model)
    (Path(model) / "config.json").write_text("[]")
    refused("must hold a JSON object", model=model)


def test_quantization(make_model: MakeModel) -> None:
    assert EngineArgs(make_model()).resolve().model.quantization is None
    assert EngineArgs(make_model(), quantization="int8").resolve().model.quantization == "int8"
    refused("quantization must be one of int8, int4, .*, got 'int7'", model=make_model(), quantization="int7")
    refused(
        "--quantization awq is for checkpoints in that form, but config.json has no", model=make_model(), quantization="awq"
    )
    both = EngineArgs(make_model(), quantization="bitsandbytes", load_format="bitsandbytes").resolve()
    assert (both.model.quantization, both.stored) == ("bitsandbytes", None) and both.load.load_format != "bitsandbytes"
    refused("load format only supports 'bitsandbytes'", model=make_model(), quantization="fp8", load_format="bitsandbytes")


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
W8A8 = {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}, "format": "int-quantized"}


def test_quantized_checkpoints(make_model: MakeModel) -> None:
    found = EngineArgs(make_model(quantization_config=AWQ, dtype="float16"), quantization="awq_marlin", device="cpu").resolve()
    assert (found.model.quantization, found.model.dtype, found.stored) == ("awq", "bfloat16", StoredWeights(method="awq"))
    gptq = {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}
    stored = EngineArgs(make_model(quantization_config=gptq)).resolve().stored
    assert stored == StoredWeights(method="gptq", form="gptq_v2", bits=8)
    compressed = {"quant_method": "compressed-tensors", "config_groups": {"group_0": W8A8}}
    stored = EngineArgs(make_model(compression_config=compressed)).resolve().stored
    assert stored == StoredWeights(method="compressed-tensors", form="int-quantized", bits=8)
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert EngineArgs(make_model(quantization_config=blocks)).resolve().stored.block == (128, 128)
    dummy = EngineArgs(make_model(quantization_config=AWQ), load_format="dummy").resolve()
    assert dummy.stored is dummy.model.quantization is None


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"quant_method": "gptq", "bits": 3}, "3-bit GPTQ weights are not supported: those of 4 and 8 bits are"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "GPTQ weights in the marlin format are not"),
        ({**AWQ, "version": "gemv"}, "AWQ weights in the gemv format are not supported"),
        ({**AWQ, "bits": 8}, "8-bit AWQ weights are not supported"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": W8A8 | {"weights": {"num_bits": 4, "type": "int"}, "format": "pack-quantized"}},
            },
            r"compressed-tensors weights of 4 bits \(int, pack-quantized\) with activations of 8 are not supported: W4A16",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": W8A8, "b": {**W8A8, "weights": {"num_bits": 4}}}},
            "compressed-tensors weights of 4 bits",
        ),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "FP8 weights in e5m2 are not supported: e4m3 is"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "blocks of 128 weights are not supported"),
        ({"quant_method": "aqlm"}, "aqlm weights are not supported: those of gptq, awq, .* are"),
        ("gptq", "gptq weights are not supported"),
    ],
)
def test_refused_quantized_checkpoints(found: Any, message: str, make_model: MakeModel) -> None:
    refused(message, model=make_model(quantization_config=found))


def test_quantization_that_contradicts_the_checkpoint(make_model: MakeModel) -> None:
    message = r"specified in the model config \(awq\) does not match .* `quantization` argument \(int8\)"
    refused(message, model=make_model(quantization_config=AWQ), quantization="int8")


def test_refused_without_weights(make_model: MakeModel) -> None:
    model = make_model()
    (Path(model) / "model.safetensors").rename(Path(model) / "pytorch_model.bin")
    assert EngineArgs(model).resolve().load.load_format == "pt"
    refused(r"has no weights: no \*.safetensors file \(only pytorch_model.bin\)", model=model, load_format="safetensors")
    (Path(model) / "pytorch_model.bin").rename(Path(model) / "consolidated.pth")
    refused(r"has no weights: no \*.safetensors, \*.bin or \*.gguf file \(only consolidated.pth\)", model=model)
    assert EngineArgs(model, load_format="dummy").resolve().load.load_format == "dummy"


def test_refused_together(make_model: MakeModel) -> None:
    model = make_model()
    refused(r"User-specified max_model_len \(5000\) is greater than the derived max_model_len", model=model, max_model_len=5000)
    refused("Use --max-model-len 4096 or less", model=model, max_model_len=5000)
    few = {"model": model, "max_num_batched_tokens": 512}
    refused(r"max_num_batched_tokens \(512\) must be greater than or equal to max_num_seqs \(600\)", **few, max_num_seqs=600)
    refused(r"max_num_batched_tokens \(512\) is smaller than max_model_len \(4096\)", **few, enable_chunked_prefill=False)
    refused("long_prefill_token_threshold .5000. cannot be greater", model=model, long_prefill_token_threshold=5000)
    refused("forbids", model=model, long_prefill_token_threshold=5, enable_chunked_prefill=False)
    refused("block_size must be a power of two, got 24", model=model, block_size=24)
    refused("neither auto, vllm nor a folder", model=model, generation_config="/none")


def test_server_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIVLLM_API_KEY", "one, two,")
    assert AsyncEngineArgs("m").server.api_key == ("one", "two")
    assert AsyncEngineArgs("m", api_key="three").server.api_key == ("three",)
    template = "{{ messages }}"
    assert AsyncEngineArgs("m", chat_template=template).server.chat_template == template
    (tmp_path / "chat.jinja").write_text(template)
    assert AsyncEngineArgs("m", chat_template=str(tmp_path / "chat.jinja")).server.chat_template == template
    key = tmp_path / "key.pem"
    key.touch()
    for message, options in [
        ("ssl-certfile /none: there is no such file", {"ssl_certfile": "/none"}),
        ("ssl-keyfile needs --ssl-certfile", {"ssl_keyfile": str(key)}),
        ("chat-template chat.jinja: No such file", {"chat_template": "chat.jinja"}),
    ]:
        with pytest.raises(ConfigError, match=message):
            _ = AsyncEngineArgs("m", **options).server


@pytest.mark.parametrize(
    ("options", "backend"), [({}, "uni"), ({"tensor_parallel_size": 2}, "mp"), ({"distributed_executor_backend": "mp"}, "mp")]
)
def test_executor_backend(make_model: MakeModel, options: dict[str, Any], backend: str) -> None:
    assert EngineArgs(make_model(), **options).resolve().parallel.distributed_executor_backend == backend


def test_workers_share_the_cores(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minivllm.utils.process.available_cores", lambda: 26)
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2}
    assert EngineArgs(make_model(), **sizes).resolve().device.cpu_threads == 3
    assert EngineArgs(make_model(), **sizes | {"data_parallel_size": 1, "nnodes": 2}).resolve().device.cpu_threads == 13


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"tensor_parallel_size": 2, "distributed_executor_backend": "uni"},
            "--distributed-executor-backend uni is one worker, and --tensor-parallel-size 2 --pipeline-parallel-size 1 are 2: "
            "use mp or ray.",
        ),
        ({"pipeline_parallel_size": 9}, "--pipeline-parallel-size 9: the model has 2 layers, and each stage needs one."),
        ({"enable_expert_parallel": True}, "--enable-expert-parallel: LlamaForCausalLM is no mixture of experts."),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be at least 1, got 0."),
        (
            {"tensor_parallel_size": 2, "nnodes": 3},
            "--nnodes 3: --tensor-parallel-size 2 --pipeline-parallel-size 1 are 2 workers, which 3 nodes cannot share "
            "equally.",
        ),
        ({"node_rank": 1}, "--node-rank 1: with --nnodes 1 there is only node 0."),
        (
            {"tensor_parallel_size": 2, "nnodes": 2, "node_rank": 2, "headless": True},
            "--node-rank 2: with --nnodes 2 there are nodes 0 to 1.",
        ),
        (
            {"tensor_parallel_size": 2, "nnodes": 2, "node_rank": 1},
            "--node-rank 1: only node 0 has an API. Start this one by `minivllm serve MODEL --headless`.",
        ),
        ({"headless": True}, "--headless is for nodes with a --node-rank above 0: node 0 has the API."),
        (
            {"tensor_parallel_size": 2, "nnodes": 2, "data_parallel_size": 2},
            "--nnodes 2 divides the workers of one engine core, and --data-parallel-size is 2: start a server for each core, "
            "with a load balancer in front.",
        ),
    ],
)
def test_workers_that_cannot_be(make_model: MakeModel, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineArgs(make_model(), **options).resolve()
    assert caught.value.message == said


def test_encoders_have_no_stages(make_model: MakeModel) -> None:
    folder = make_model(architectures=["BertModel"], type_vocab_size=2, hidden_act="gelu", layer_norm_eps=1e-12)
    with pytest.raises(ConfigError, match="--pipeline-parallel-size 2: BertModel is an encoder, which is not divided"):
        EngineArgs(folder, pipeline_parallel_size=2).resolve()
