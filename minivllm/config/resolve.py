"""From the options given to a complete `EngineConfig`: an ordered list of small rules. Used by `EngineArgs.resolve`."""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minivllm.config import env, gguf_model, model_files, pooling, quantization, sharded_state
from minivllm.config.engine_config import ENGINE_SECTIONS, EngineConfig
from minivllm.config.hf.registry import has_family
from minivllm.config.model_spec import ModelSpec, architecture_of, canonical, token_ids
from minivllm.config.option import AUTO, options_of
from minivllm.config.sections.generation import GenerationConfig
from minivllm.config.sections.kv_transfer import KVTransferConfig, read_kv_transfer
from minivllm.config.sections.model import OURS, TRANSFORMERS
from minivllm.config.sections.pooling import PoolingConfig
from minivllm.config.sections.server import ServerConfig
from minivllm.config.shares import check_shares
from minivllm.errors import ConfigError
from minivllm.utils import hub, process
from minivllm.utils.gguf import GGUFFile, read_gguf
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

MAX_NUM_SEQS = {"cpu": 128, "cuda": 256}
MAX_NUM_BATCHED_TOKENS = {"cpu": 2048, "cuda": 8192}
SERVER_MAX_NUM_QUEUED_REQS = 4096
_BEYOND_FLOAT16 = {"Gemma2ForCausalLM", "Gemma3ForCausalLM", "Glm4ForCausalLM"}  # by their activations


@dataclass
class Draft:
    """What the rules work on: `values` begins as the options (given or default) and ends as the fields of the sections."""

    values: dict[str, Any]
    given: frozenset[str]
    server: bool
    folder: Path = Path()  # of the model; its GGUF file if `gguf` is set
    tokenizer: Path = Path()  # likewise
    gguf: GGUFFile | None = None
    hf_config: dict[str, Any] = field(default_factory=dict)
    spec: ModelSpec | None = None
    generation: GenerationConfig = GenerationConfig()
    pooling: PoolingConfig | None = None
    kv_transfer: KVTransferConfig | None = None
    stored: quantization.StoredWeights | None = None


def resolve_engine(given: Mapping[str, Any], *, server: bool = False) -> EngineConfig:
    """`given` holds checked values by flat name; names of other sections are left alone."""
    defaults = {o.name: o.default for section in ENGINE_SECTIONS.values() for o in options_of(section)}
    known = {name: value for name, value in given.items() if name in defaults}
    draft = Draft(values={**defaults, **known}, given=frozenset(known), server=server)
    for rule in RULES:
        rule(draft)
    sections = {
        name: section(**{f: draft.values[f] for f in section.__dataclass_fields__ if f in draft.values})  # type: ignore[attr-defined]
        for name, section in ENGINE_SECTIONS.items()
    }
    assert draft.spec is not None
    facts = {name: getattr(draft, name) for name in ("spec", "generation", "pooling", "kv_transfer", "stored")}
    return EngineConfig(**sections, **facts)


def find_model(draft: Draft) -> None:
    model = draft.values["model"]
    if not model:
        raise ConfigError("no model given: name a model folder or a hub name, as in `minivllm serve FOLDER`.", param="model")
    draft.folder = hub.resolve_folder(model, draft.values["revision"])
    file = gguf_model.find_file(draft.folder, draft.values["load_format"])
    if file is not None:
        draft.folder, draft.gguf = file, read_gguf(file)
        draft.values["load_format"] = draft.values["load_format"].replace("auto", "gguf")
    draft.values["path"] = str(draft.folder)
    draft.values["served_model_name"] = draft.values["served_model_name"] or (model,)


def find_tokenizer(draft: Draft) -> None:
    name = draft.values["tokenizer"]
    draft.tokenizer = hub.resolve_folder(name, what="tokenizer") if name else draft.folder
    draft.values["tokenizer"] = str(draft.tokenizer)


def read_model(draft: Draft) -> None:
    config = gguf_model.read_config(draft.gguf) if draft.gguf else model_files.read_config(draft.folder)
    draft.hf_config = model_files.override(config, draft.values["hf_overrides"])
    choose_implementation(draft)
    of_transformers = draft.values["model_impl"] == TRANSFORMERS
    draft.spec = (ModelSpec.of_transformers if of_transformers else ModelSpec.from_hf)(draft.hf_config)


def choose_quantization(draft: Draft) -> None:
    values = draft.values
    if values["load_format"] == "bitsandbytes":
        values["load_format"] = "auto"
        if values["quantization"] not in (None, "bitsandbytes"):
            raise ConfigError(
                f"BitsAndBytes load format only supports 'bitsandbytes' quantization, but got {values['quantization']}.",
                param="load_format",
            )
        values["quantization"] = "bitsandbytes"
    stored = quantization.read(draft.hf_config)
    values["quantization"] = quantization.choose(values["quantization"], stored)
    if values["load_format"] != "dummy":
        draft.stored = stored
    elif stored is not None:  # there is no checkpoint to be read
        values["quantization"] = None


def choose_implementation(draft: Draft) -> None:
    architecture = canonical(architecture_of(draft.hf_config))
    if draft.values["model_impl"] == "auto":
        known = has_family(architecture) or draft.gguf is not None
        draft.values["model_impl"] = OURS if known else TRANSFORMERS
        if not known:
            logger.info("%s has no family here: running transformers' modelling code (--model-impl).", architecture)
    elif draft.values["model_impl"] == TRANSFORMERS and draft.gguf is not None:
        raise ConfigError("--model-impl transformers reads safetensors, not GGUF files.", param="model_impl")


def choose_runner(draft: Draft) -> None:
    assert draft.spec is not None
    values, spec = draft.values, draft.spec
    values["runner"] = pooling.choose_runner(
        values["runner"], values["convert"], architecture_of(draft.hf_config), draft.folder
    )
    if values["runner"] == "pooling" and values["model_impl"] == TRANSFORMERS:
        raise ConfigError(
            f"{spec.architecture} runs by transformers' modelling code (--model-impl), which here only generates.",
            param="runner",
        )
    if values["runner"] == "pooling":
        draft.pooling = pooling.read_pooling(spec, draft.folder, draft.hf_config, values["convert"], values["pooler_config"])
    elif values["pooler_config"]:
        raise ConfigError("--pooler-config is for pooling models: this one generates (--runner).", param="pooler_config")
    values["convert"] = draft.pooling.task if draft.pooling is not None else "none"
    if spec.encoder is not None:  # each token looks at all others: there are no chunks, and nothing to keep
        values["enable_chunked_prefill"] = values["enable_prefix_caching"] = False


def choose_load_format(draft: Draft) -> None:
    if draft.values["load_format"] != "dummy" and draft.gguf is None:
        draft.values["load_format"] = model_files.weights_format(draft.folder, draft.values["load_format"])
    if draft.values["load_format"] == "sharded_state":
        sizes = draft.values["tensor_parallel_size"], draft.values["pipeline_parallel_size"]
        sharded_state.check_ranks(draft.folder, *sizes)
        if draft.stored is not None:
            raise ConfigError("--load-format sharded_state reads plain weights, not a quantized model.", param="load_format")


def read_generation_config(draft: Draft) -> None:
    source = draft.values["generation_config"]
    if source in ("auto", "vllm"):
        found = gguf_model.read_generation(draft.gguf) if draft.gguf else model_files.read_generation(draft.folder)
        generation = found if source == "auto" else {}
    else:
        path = Path(source).expanduser()
        path = path / "generation_config.json" if path.is_dir() else path
        if not path.is_file():
            raise ConfigError(f"--generation-config {source} is neither auto, vllm nor a folder with generation_config.json.")
        generation = model_files.read_json(path)
    assert draft.spec is not None
    num_tokens: int | None
    eos = token_ids(generation.get("eos_token_id")) or draft.spec.eos_token_ids
    if draft.tokenizer.is_file():
        file = GGUFFile(draft.tokenizer)
        eos += gguf_model.eos_token_ids(file)
        num_tokens = gguf_model.num_tokens(file)
    else:
        tokenizer = model_files.read_tokenizer(draft.tokenizer)
        eos += tokenizer.eos_token_ids(draft.tokenizer)
        num_tokens = tokenizer.num_tokens(draft.spec.vocab_size)
    draft.generation = GenerationConfig(
        eos_token_ids=tuple(dict.fromkeys(eos)),
        num_tokens=num_tokens,
        defaults=model_files.sampling_defaults(generation),
    )


def choose_workers(draft: Draft) -> None:
    values, spec = draft.values, draft.spec
    assert spec is not None
    stages, size = values["pipeline_parallel_size"], values["pipeline_parallel_size"] * values["tensor_parallel_size"]
    of_transformers = values["model_impl"] == TRANSFORMERS
    reason = ""
    if stages > 1 and of_transformers:
        reason = f"{spec.architecture} runs by transformers' modelling code (--model-impl), which is not divided into stages"
    elif stages > 1 and spec.encoder is not None:
        reason = f"{spec.architecture} is an encoder, which is not divided into stages"
    elif stages > spec.num_layers:
        reason = f"the model has {spec.num_layers} layers, and each stage needs one"
    if reason:
        raise ConfigError(f"--pipeline-parallel-size {stages}: {reason}.", param="pipeline_parallel_size", value=stages)
    if values["tensor_parallel_size"] > 1 and not of_transformers:
        check_shares(spec, values["tensor_parallel_size"], values["enable_expert_parallel"])
    if values["enable_expert_parallel"] and spec.moe is None:
        raise ConfigError(
            f"--enable-expert-parallel: {spec.architecture} is no mixture of experts.", param="enable_expert_parallel"
        )
    if values["distributed_executor_backend"] is None:
        values["distributed_executor_backend"] = "uni" if size == 1 else "mp"
    if values["distributed_executor_backend"] == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "--distributed-executor-backend ray: Ray is not installed. Try: pip install 'minivllm[ray]'.",
            param="distributed_executor_backend",
        )
    if values["distributed_executor_backend"] == "uni" and size > 1:
        raise ConfigError(
            f"--distributed-executor-backend uni is one worker, and --tensor-parallel-size {values['tensor_parallel_size']} "
            f"--pipeline-parallel-size {stages} are {size}: use mp or ray.",
            param="distributed_executor_backend",
        )


def check_nodes(draft: Draft) -> None:
    values = draft.values
    nodes, rank = values["nnodes"], values["node_rank"]
    tensor_size, stages = values["tensor_parallel_size"], values["pipeline_parallel_size"]
    if rank >= nodes:
        there = f"are nodes 0 to {nodes - 1}" if nodes > 1 else "is only node 0"
        raise ConfigError(f"--node-rank {rank}: with --nnodes {nodes} there {there}.", param="node_rank", value=rank)
    if values["headless"] and rank == 0:
        raise ConfigError("--headless is for nodes with a --node-rank above 0: node 0 has the API.", param="headless")
    if rank > 0 and not values["headless"]:
        raise ConfigError(
            f"--node-rank {rank}: only node 0 has an API. Start this one by `minivllm serve MODEL --headless`.",
            param="node_rank",
            value=rank,
        )
    if nodes > 1 and values["distributed_executor_backend"] == "ray":
        raise ConfigError(f"--nnodes {nodes}: Ray finds its machines by itself.", param="nnodes", value=nodes)
    if nodes > 1 and values["data_parallel_size"] > 1:
        raise ConfigError(
            f"--nnodes {nodes} divides the workers of one engine core, and --data-parallel-size is "
            f"{values['data_parallel_size']}: start a server for each core, with a load balancer in front.",
            param="data_parallel_size",
        )
    if tensor_size * stages % nodes:
        raise ConfigError(
            f"--nnodes {nodes}: --tensor-parallel-size {tensor_size} --pipeline-parallel-size {stages} are "
            f"{tensor_size * stages} workers, which {nodes} nodes cannot share equally.",
            param="nnodes",
            value=nodes,
        )


def choose_device(draft: Draft) -> None:
    values = draft.values
    if values["device"] == "auto":
        values["device"] = "cuda" if process.has_cuda() else "cpu"
    if values["cpu_threads"] == AUTO:
        num_workers = values["tensor_parallel_size"] * values["pipeline_parallel_size"] * values["data_parallel_size"]
        num_local = num_workers // values["nnodes"]
        values["cpu_threads"] = env.cpu_threads() or max(1, process.available_cores() // num_local)


def choose_dtype(draft: Draft) -> None:
    assert draft.spec is not None
    dtype, too_large = draft.values["dtype"], draft.spec.architecture in _BEYOND_FLOAT16
    if dtype == "float16" and too_large:
        raise ConfigError(
            f"The model type {draft.hf_config.get('model_type', draft.spec.architecture)!r} does not support float16. "
            "Reason: Numerical instability. Please use bfloat16 or float32 instead.",
            param="dtype",
            value=dtype,
        )
    if dtype == "auto":
        dtype = "float16" if draft.spec.dtype == "float16" and not too_large else "bfloat16"
        if dtype == "float16" and draft.stored is not None and draft.values["device"] == "cpu":
            dtype = "bfloat16"  # in which the kernels multiply packed weights
        if dtype != draft.spec.dtype:
            logger.info("Running the %s checkpoint in %s; --dtype float32 keeps its precision.", draft.spec.dtype, dtype)
    draft.values["dtype"] = dtype


def choose_max_model_len(draft: Draft) -> None:
    assert draft.spec is not None
    limit = draft.spec.max_length
    tokenizer_limit = model_files.read_json(draft.tokenizer / "tokenizer_config.json").get("model_max_length")
    if isinstance(tokenizer_limit, int) and 0 < tokenizer_limit < limit:
        limit = tokenizer_limit
    else:
        tokenizer_limit = None
    asked = draft.values["max_model_len"]
    usual = pooling.max_length(draft.folder) if draft.pooling is not None else None
    draft.values["max_model_len_auto"] = asked == AUTO and "max_model_len" in draft.given
    if asked > limit:
        raise ConfigError(
            f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
            f"(max_position_embeddings={draft.spec.max_length} or model_max_length={tokenizer_limit} in the model's files). "
            f"Use --max-model-len {limit} or less, or extend the model's positions with --hf-overrides.",
            param="max_model_len",
            value=asked,
        )
    draft.values["max_model_len"] = min(limit, usual or limit) if asked == AUTO else asked


def choose_step_size(draft: Draft) -> None:
    values = draft.values
    max_num_seqs, tokens, length = values["max_num_seqs"], values["max_num_batched_tokens"], values["max_model_len"]
    if max_num_seqs == AUTO:
        usual = MAX_NUM_SEQS[values["device"]]
        max_num_seqs = usual if tokens == AUTO else min(usual, tokens)
    values["max_num_batched_tokens_auto"] = tokens == AUTO and values["enable_chunked_prefill"]
    if tokens == AUTO:
        tokens = max(MAX_NUM_BATCHED_TOKENS[values["device"]], max_num_seqs, 0 if values["enable_chunked_prefill"] else length)
    if tokens < max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({max_num_seqs}).",
            param="max_num_batched_tokens",
            value=tokens,
        )
    if tokens < length and not values["enable_chunked_prefill"]:
        raise ConfigError(
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). This effectively limits the maximum "
            "sequence length to max_num_batched_tokens and makes the server reject longer sequences. Please increase "
            "max_num_batched_tokens, decrease max_model_len, or enable chunked prefill.",
            param="max_num_batched_tokens",
            value=tokens,
        )
    values["max_num_seqs"], values["max_num_batched_tokens"] = max_num_seqs, tokens


def check_scheduler(draft: Draft) -> None:
    values = draft.values
    threshold = values["long_prefill_token_threshold"]
    if threshold > values["max_model_len"]:
        raise ConfigError(
            f"long_prefill_token_threshold ({threshold}) cannot be greater than the max_model_len ({values['max_model_len']}).",
            param="long_prefill_token_threshold",
            value=threshold,
        )
    if threshold and not values["enable_chunked_prefill"]:
        raise ConfigError(
            "long_prefill_token_threshold divides prompts, which --no-enable-chunked-prefill forbids.",
            param="long_prefill_token_threshold",
        )
    if values["max_num_queued_reqs"] is None and draft.server:
        values["max_num_queued_reqs"] = SERVER_MAX_NUM_QUEUED_REQS
    values["max_num_queued_reqs"] = values["max_num_queued_reqs"] or None


def check_cache(draft: Draft) -> None:
    block_size = draft.values["block_size"]
    if block_size & (block_size - 1):
        raise ConfigError(f"block_size must be a power of two, got {block_size}.", param="block_size", value=block_size)
    if draft.values["kv_cache_dtype"] == "auto":
        draft.values["kv_cache_dtype"] = draft.values["dtype"]


def choose_kv_transfer(draft: Draft) -> None:
    values, name = draft.values, "kv_transfer_config"
    if not values[name]:
        return
    if draft.pooling is not None or not values["enable_prefix_caching"]:
        raise ConfigError("--kv-transfer-config: it needs a model that generates, and --enable-prefix-caching.", param=name)
    if values["distributed_executor_backend"] == "ray" or values["nnodes"] > 1 or sys.platform != "linux":
        raise ConfigError(
            "--kv-transfer-config: the workers must be on one machine, with Linux: no Ray, no --nnodes.", param=name
        )
    draft.kv_transfer = read_kv_transfer(values[name])


RULES: list[Callable[[Draft], None]] = [
    find_model,
    find_tokenizer,
    read_model,
    choose_quantization,
    choose_runner,
    choose_load_format,
    read_generation_config,
    choose_workers,
    check_nodes,
    choose_device,
    choose_dtype,
    choose_max_model_len,
    choose_step_size,
    check_scheduler,
    check_cache,
    choose_kv_transfer,
]


def resolve_server(given: Mapping[str, Any]) -> ServerConfig:
    """`given` holds the checked options of the server. The files they name must exist; a chat template is read."""
    values = {"api_key": env.api_keys(), "admin_api_key": env.admin_api_keys(), **given}
    for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
        if name in values:
            path = Path(values[name]).expanduser()
            if not path.is_file():
                raise ConfigError(f"--{name.replace('_', '-')} {path}: there is no such file.", param=name, value=str(path))
            values[name] = str(path)
    if "ssl_keyfile" in values and "ssl_certfile" not in values:
        raise ConfigError("--ssl-keyfile needs --ssl-certfile.", param="ssl_certfile")
    if "chat_template" in values:
        values["chat_template"] = _chat_template(values["chat_template"])
    return ServerConfig(**values)


def _chat_template(given: str) -> str:
    """The template's text: `given` itself if it looks like one, else what is in the file of that name."""
    if any(character in given for character in "{}\n"):
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"--chat-template {given}: {reason}. Give a Jinja file or a template.", param="chat_template") from e
