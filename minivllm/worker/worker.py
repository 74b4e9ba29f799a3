"""`Worker`: one device with its share of the model and of the KV cache. Called by an executor, always from one thread."""

import dataclasses
import mmap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from minivllm.config.engine_config import EngineConfig
from minivllm.config.env import no_extension
from minivllm.config.model_spec import ModelSpec
from minivllm.config.sections.model import TRANSFORMERS
from minivllm.distributed.communicator import connect
from minivllm.distributed.groups import ALONE, Place
from minivllm.distributed.pipeline import NO_ENDS, LinkEnds, connect_stages, layer_range
from minivllm.errors import ConfigError
from minivllm.kernels import Ops, communicator, ops_for
from minivllm.messages.kv_spec import KVSpec
from minivllm.messages.plan import WorkerPlan
from minivllm.messages.step import StepPlan, StepResult
from minivllm.model.attention.select import select_backend
from minivllm.model.interface import CausalLM, Model
from minivllm.model.loading.dense import Dense
from minivllm.model.loading.load import load_model, outline, save_shares
from minivllm.model.pooling import Pooler
from minivllm.worker.devices import DEVICES
from minivllm.worker.devices.multiplying import multiplying_rates
from minivllm.worker.graph_runner import GraphRunner
from minivllm.worker.input_builder import InputBuilder
from minivllm.worker.kv_pool import KVPool
from minivllm.worker.memory import available_kv_bytes
from minivllm.worker.model_runner import ModelRunner
from minivllm.worker.pooling_runner import PoolingRunner
from minivllm.worker.prompt_logprobs import PromptLogprobs
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.sampling.sampler import Sampler
from minivllm.worker.stage_runner import StageRunner
from minivllm.worker.warmup import largest_plans, pooling_plans, timing_plans, warmup_plans


class Worker:
    """Order of calls: init_device, load_model, kv_spec and available_kv_bytes, allocate_kv, warm_up, then execute. Where there
    are several workers all get the same ones, at the same time.

    The weights and the cache stay where they are until the last reference to the worker goes.
    """

    def __init__(self, config: EngineConfig, place: Place = ALONE, rendezvous: str = "", ends: LinkEnds = NO_ENDS):
        """rendezvous: see `distributed.communicator.connect`. ends: see `distributed.pipeline.connect_stages`."""
        if place.pipeline_size > 1:
            own = layer_range(config.spec.num_layers, place.pipeline_rank, place.pipeline_size)
            config = dataclasses.replace(config, spec=dataclasses.replace(config.spec, own=own))
        self._config = config
        self._place = place
        self._rendezvous = rendezvous
        self._ends = ends
        self._group: communicator.Communicator = communicator.ALONE
        self._num_local = config.parallel.data_parallel_size * place.local_size  # workers of all cores on this machine
        index = config.parallel.data_parallel_rank * place.local_size + place.local_rank
        self._device = DEVICES[config.device.device](config.device, index, self._num_local)
        self._pool: KVPool | None = None
        self._graphs: GraphRunner | None = None
        self._runner: ModelRunner | PoolingRunner | StageRunner | None = None
        self._ended = 0.0  # when the last step did

    def init_device(self) -> None:
        self._device.set_up()
        self._group = connect(self._device.torch_name, self._rendezvous, self._place, use_extension=not no_extension())

    def load_model(self, progress: bool = False) -> None:
        """ConfigError, in one line, if the model folder does not hold the model that its config.json describes."""
        config, device, ops = self._config, self._device.torch_name, self._make_ops()
        # Before anything is loaded, it may say that it cannot be; but transformers' layers are known when they are there.
        pool = None if config.model.model_impl == TRANSFORMERS else self._make_pool(ops, config.spec)
        free_bytes, progress = self._device.memory().free, progress and self._place.rank == 0
        model = load_model(config, ops, self._dtype, device, free_bytes, progress)
        spec, self._pool = model.spec, self._make_pool(ops, model.spec) if pool is None else pool
        block_size, backend = config.cache.block_size, self._pool.backend
        slots = RequestSlots(config.scheduler.max_num_seqs, config.model.max_model_len, block_size)
        link = connect_stages(device, self._rendezvous, self._place, self._ends, spec.hidden_size, self._dtype)
        no_input = None if spec.has_first_layer else torch.empty((0, spec.hidden_size), dtype=self._dtype, device=device)
        table_width = slots.block_tables.table.shape[1]
        graphs = GraphRunner(model, backend, ops, self._device, config.scheduler.max_num_seqs, table_width, no_input)
        self._graphs = graphs
        receive = None if link is None or spec.has_first_layer else link.receive
        builder = InputBuilder(slots, block_size, self._device, spec.encoder is not None, receive)
        if link is not None and not spec.has_last_layer:
            self._runner = StageRunner(graphs, slots, builder, link)
        else:
            self._runner = self._make_runner(model, graphs, slots, builder, ops)

    def save_sharded_state(self, path: str, max_size: int) -> None:
        """See `save_shares`."""
        save_shares(self._config, self._make_ops(), self._dtype, self._device.torch_name, Path(path), max_size)

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self._config.model.dtype)
        return found

    def _make_ops(self) -> Ops:
        return dataclasses.replace(
            ops_for(self._device.torch_name, use_extension=not no_extension()),
            group=self._group,
            whole_experts=self._config.parallel.enable_expert_parallel and self._group.size > 1,
        )

    def _make_pool(self, ops: Ops, spec: ModelSpec) -> KVPool:
        device, dtype = self._device.torch_name, self._kv_dtype()
        backend = select_backend(spec, self._dtype, dtype, device)(spec, ops)
        return KVPool(backend, spec.own_layers, self._config.cache.block_size, dtype, device)

    def _kv_dtype(self) -> torch.dtype:
        name = self._config.cache.kv_cache_dtype
        if name != "fp8":
            return getattr(torch, name)
        refusal = self._device.fp8_refusal()
        if refusal is not None:
            raise ConfigError(f"--kv-cache-dtype fp8: {refusal}.", param="kv_cache_dtype")
        return torch.float8_e4m3fn

    def _make_runner(
        self, model: Model, graphs: GraphRunner, slots: RequestSlots, builder: InputBuilder, ops: Ops
    ) -> ModelRunner | PoolingRunner:
        config, pooling = self._config, self._config.pooling
        if pooling is not None:
            dense = [Dense(folder, self._device.torch_name) for folder in pooling.dense]
            return PoolingRunner(graphs, slots, builder, Pooler(pooling, model, self._dtype, dense))
        assert isinstance(model, CausalLM), "config.resolve makes pooling models of those that cannot generate"
        vocab_size = min(config.spec.vocab_size, config.generation.num_tokens or config.spec.vocab_size)
        sampler = Sampler(ops.sampling, slots, self._device, config.scheduler.max_num_seqs, config.model.seed, vocab_size)
        prompt_logprobs = PromptLogprobs(ops.sampling, slots, model, vocab_size)
        return ModelRunner(model, graphs, slots, builder, sampler, prompt_logprobs)

    def kv_spec(self) -> KVSpec:
        return self._loaded_pool().spec(self._config.spec.sliding_window)

    def available_kv_bytes(self) -> int:
        return available_kv_bytes(self._config.cache, self._device, self._num_local, self._run_largest_step)

    def plan(self) -> WorkerPlan:
        """What the calls up to here would find, without loading anything; after `init_device`."""
        config, name, ops = self._config, self._device.torch_name, self._make_ops()
        model, free = outline(config, ops, self._dtype, name), self._device.memory().free
        read = sum(int(share * size) for share, size in model.read.items())
        rates, read_rate = multiplying_rates(model.matrices, ops, name, read, free)
        return WorkerPlan(
            weight_bytes=model.kept_bytes,
            read=list(model.read.items()),
            free_bytes=free,
            kv_spec=self._make_pool(ops, config.spec).spec(config.spec.sliding_window),
            kv_bytes=available_kv_bytes(config.cache, self._device, self._num_local, lambda: None, to_load=model.kept_bytes),
            rates=rates,
            read_rate=read_rate,
        )

    def allocate_kv(self, num_blocks: int) -> None:
        pool, graphs = self._loaded_pool(), self._graphs
        assert graphs is not None
        pool.allocate(num_blocks)
        config, device = self._config, self._device
        # Triton has no attention to whole texts, and what transformers' code calls is not known.
        calls_torch = config.model.model_impl == TRANSFORMERS or (config.spec.encoder is not None and device.captures)
        if not config.model.enforce_eager and not calls_torch:
            graphs.capture(pool.layers, config.scheduler.max_num_batched_tokens)

    @torch.inference_mode()
    def copy_blocks(self, paths: Sequence[str], total: int, first: int, block_ids: Sequence[int], into_cache: bool) -> None:
        """See `KVPool.copy_blocks`; `paths`: of each rank's memory."""
        with open(paths[self._place.rank], "r+b", buffering=0) as file:
            self._loaded_pool().copy_blocks(mmap.mmap(file.fileno(), 0), total, first, block_ids, into_cache)

    def warm_up(self) -> None:
        config, num_blocks = self._config, self._loaded_pool().layers[0].shape[1]
        num_slots, block_size, length = config.scheduler.max_num_seqs, config.cache.block_size, config.model.max_model_len
        limits, lengths = (num_slots, num_blocks, block_size, length), self._device.warm_up_lengths
        for plan in pooling_plans(*limits) if config.pooling else warmup_plans(*limits, changed=bool(lengths)):
            self.execute(plan)
        most = min(length - 1, num_blocks * block_size, config.scheduler.max_num_batched_tokens)
        for prompt in lengths:
            if prompt <= most:
                self.time_prefill(prompt)

    def time_prefill(self, length: int) -> float:
        """Seconds that a step with one prompt of this length takes, which the cache must hold."""
        plans = timing_plans(length, self._config.cache.block_size)
        begin = time.perf_counter()
        for plan in plans:
            self.execute(plan)
        return time.perf_counter() - begin

    @property
    def max_in_flight(self) -> int:
        """Steps that may begin before the first of them is finished."""
        return 2 if self._device.overlaps else 1

    def execute(self, plan: StepPlan) -> StepResult:
        """One step. A request that fails alone has an error in its result; an exception means that the worker is broken."""
        return self.begin(plan)()

    @torch.inference_mode()
    def begin(self, plan: StepPlan) -> Callable[[], StepResult]:
        """As `execute`, in two parts: the function, to be called once and in the order of the steps, waits for the result."""
        assert self._runner is not None and self._pool is not None and self._pool.layers, "the worker is not ready"
        began = time.perf_counter()
        finish = self._runner.begin(plan, self._pool.layers)

        def wait() -> StepResult:
            result = finish()
            ended = time.perf_counter()
            result.seconds = ended - max(began, self._ended)  # not the time in which the step before was computed
            self._ended = ended
            return result

        return wait

    def check_health(self) -> None:
        """A CPU worker is healthy as long as its process is."""

    def shutdown(self) -> None:
        """Let go of weights and cache."""
        self._graphs = self._runner = None
        self._pool = None
        self._group.close()

    def _run_largest_step(self) -> None:
        config, pool = self._config, self._loaded_pool()
        scheduler, length = config.scheduler, config.model.max_model_len
        pool.allocate(1)
        for plan in largest_plans(scheduler.max_num_seqs, scheduler.max_num_batched_tokens, length, config.cache.block_size):
            self.execute(plan)
        pool.layers = []

    def _loaded_pool(self) -> KVPool:
        assert self._pool is not None, "load_model comes first"
        return self._pool
