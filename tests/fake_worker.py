"""A worker without a model that watches the scheduler: it "writes" each token's history into KV cells and checks every read.

Its next token is a fixed function of all tokens before it, so the right output of a request is known without any scheduling.
"""

import zlib
from concurrent.futures import Future
from types import SimpleNamespace

import msgspec

from minivllm.config.engine_config import EngineConfig
from minivllm.config.model_spec import ModelSpec
from minivllm.config.sections.cache import CacheConfig
from minivllm.config.sections.device import DeviceConfig
from minivllm.config.sections.generation import GenerationConfig
from minivllm.config.sections.load import LoadConfig
from minivllm.config.sections.model import ModelConfig
from minivllm.config.sections.observability import ObservabilityConfig
from minivllm.config.sections.parallel import ParallelConfig
from minivllm.config.sections.scheduler import SchedulerConfig
from minivllm.executor.base import Executor
from minivllm.messages.kv_spec import KVSpec
from minivllm.messages.request import EngineRequest
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import SlotResult, StepPlan, StepResult, TokenLogprobs

VOCAB = 50
EOS = 0
FAILING = 49  # a request fails when it would sample this, if its id ends in "/fails"


def make_request(request_id, prompt, *, priority=0, salt=None, eos=(EOS,), arrival=0.0, **params):
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(**params),
        eos_token_ids=list(eos),
        bad_words_token_ids=[],
        arrival_time=arrival,
        priority=priority,
        cache_salt=salt,
    )


def make_config(*, max_model_len=64, stages=1, **options) -> EngineConfig:
    """A real config of a tiny model; `options` are fields of the scheduler's and the cache's sections."""
    cache_fields = set(CacheConfig.__dataclass_fields__)
    cache = {k: options.pop(k) for k in list(options) if k in cache_fields}
    hf = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 1024,
    }
    return EngineConfig(
        model=ModelConfig(model="fake", max_model_len=max_model_len, dtype="float32"),
        load=LoadConfig(),
        cache=CacheConfig(**{"block_size": 4, **cache}),
        scheduler=SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, **options}),
        device=DeviceConfig(device="cpu", cpu_threads=1),
        observability=ObservabilityConfig(),
        spec=ModelSpec.from_hf(hf),
        parallel=ParallelConfig(pipeline_parallel_size=stages),
        generation=GenerationConfig(eos_token_ids=(EOS,)),
    )


def chain(previous: int, token: int) -> int:
    return zlib.crc32(token.to_bytes(4, "little"), previous)


def next_token(history: int, seed: int | None) -> int:
    return zlib.crc32(b"sample", chain(history, seed or 0)) % VOCAB


def salt_of(request_id: str) -> str | None:
    """Tests put a request's salt into its id: "r1@salt"."""
    return request_id.partition("/")[0].partition("@")[2] or None


def root_of(request_id: str) -> int:
    return zlib.crc32((salt_of(request_id) or "").encode())


def expected_output(request: EngineRequest, max_model_len: int) -> tuple[list[int], str, int | None]:
    """Tokens, finish reason and stop reason of a request by itself. Written apart from the scheduler on purpose."""
    params = request.sampling_params
    history = root_of(request.request_id)
    for token in request.prompt_token_ids:
        history = chain(history, token)
    output: list[int] = []
    if params.max_tokens == 0:
        return output, "length", None
    while True:
        token = next_token(history, params.seed)
        if token == FAILING and request.request_id.endswith("/fails"):
            return output, "error", None
        output.append(token)
        history = chain(history, token)
        if len(output) >= params.min_tokens:
            if token in request.eos_token_ids and not params.ignore_eos:
                return output, "stop", None
            if token in params.stop_token_ids:
                return output, "stop", token
        if len(output) == params.max_tokens or len(request.prompt_token_ids) + len(output) >= max_model_len:
            return output, "length", None


class Row:
    def __init__(self, new):
        self.request_id = new.request_id
        self.tokens = new.token_ids  # not copied: a worker in the same process may well append to what it was given
        self.table = new.block_ids
        self.num_prompt = new.num_prompt_tokens
        self.num_computed = new.num_computed_tokens
        self.num_logprobs_done = new.num_prompt_logprobs_done
        self.params = new.sampling_params
        self.histories = [root_of(new.request_id)]  # histories[i]: after i tokens

    def history(self, num_tokens: int) -> int:
        while len(self.histories) <= num_tokens:
            self.histories.append(chain(self.histories[-1], self.tokens[len(self.histories) - 1]))
        return self.histories[num_tokens]


class FakeWorker:
    """The worker's surface. Raises AssertionError where a real one would compute something else than was meant."""

    max_in_flight = 1

    def __init__(self, config: EngineConfig):
        self.block_size = config.cache.block_size
        self.available_bytes = 4096
        self.rows: dict[int, Row] = {}
        self.cells: dict[tuple[int, int], int] = {}  # (block, offset) → history up to and including the token there
        self.num_blocks = 0
        self.calls: list[str] = []

    def init_device(self):
        self.calls.append("init_device")

    def load_model(self, progress):
        self.calls.append("load_model")

    def kv_spec(self):
        return KVSpec(block_size=self.block_size, bytes_per_block=64)

    def available_kv_bytes(self):
        return self.available_bytes

    def allocate_kv(self, num_blocks):
        self.calls.append("allocate_kv")
        self.num_blocks = num_blocks

    def warm_up(self):
        self.calls.append("warm_up")

    def time_prefill(self, length):
        self.calls.append("time_prefill")
        return 0.1

    def check_health(self):
        pass

    def shutdown(self):
        self.calls.append("shutdown")

    def begin(self, plan: StepPlan):
        result = self.execute(plan)
        return lambda: result

    def execute(self, plan: StepPlan) -> StepResult:
        for slot in plan.freed_slots:
            del self.rows[slot]
        for new in plan.new:
            assert new.slot not in self.rows, "a slot was given to two requests"
            self.rows[new.slot] = Row(new)
        assert len({s.slot for s in plan.scheduled}) == len(plan.scheduled)
        for scheduled in plan.scheduled:
            self._write(self.rows[scheduled.slot], scheduled)
        return StepResult(plan.step_id, [self._compute(self.rows[s.slot], s) for s in plan.scheduled])

    def _cell(self, row: Row, position: int) -> tuple[int, int]:
        return row.table[position // self.block_size], position % self.block_size

    def _write(self, row: Row, scheduled) -> None:
        row.table += scheduled.new_block_ids
        end = scheduled.num_computed_tokens + scheduled.num_tokens
        assert scheduled.num_tokens > 0
        assert scheduled.num_computed_tokens == row.num_computed
        assert end <= len(row.tokens)
        assert scheduled.sample == (end == len(row.tokens))
        assert len(set(row.table)) == len(row.table)
        for position in range(row.num_computed, end):
            self.cells[self._cell(row, position)] = row.history(position + 1)

    def _compute(self, row: Row, scheduled) -> SlotResult:
        start, end = row.num_computed, row.num_computed + scheduled.num_tokens
        for position in range(end):
            assert self.cells.get(self._cell(row, position)) == row.history(position + 1), "read what is not its own"
        row.num_computed = end
        result = SlotResult(scheduled.slot, [])
        if row.params.prompt_logprobs is not None:
            first = max(start + 1, row.num_logprobs_done + 1)
            result.prompt_logprobs = [logprob_of(row.tokens[i], i) for i in range(first, min(end + 1, row.num_prompt))]
        if scheduled.sample:
            token = next_token(row.history(end), row.params.seed)
            row.tokens.append(token)
            if token == FAILING and row.request_id.endswith("/fails"):
                return SlotResult(scheduled.slot, [], error="NaN logits")
            result.token_ids.append(token)
            if row.params.logprobs is not None:
                result.logprobs = [logprob_of(token, end)]
        return result


class FirstStage(FakeWorker):
    """Of a pipeline: it samples nothing, and knows of the last stage's tokens what plans say."""

    def execute(self, plan: StepPlan) -> StepResult:
        return super().execute(msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan))

    def _write(self, row: Row, scheduled) -> None:
        if scheduled.token is not None and len(row.tokens) == scheduled.num_computed_tokens:
            row.tokens.append(scheduled.token)
        super()._write(row, scheduled)

    def _compute(self, row: Row, scheduled) -> SlotResult:
        num_tokens = len(row.tokens)
        result = super()._compute(row, scheduled)
        del row.tokens[num_tokens:]
        return result


def logprob_of(token: int, position: int) -> TokenLogprobs:
    return TokenLogprobs([token], [-float(position)], 1)


class FakeExecutor(Executor):
    """`depth` 1 computes at once; more computes as late as possible, as an executor in another process may."""

    def __init__(self, worker: FakeWorker, depth: int = 1, first_stage: FirstStage | None = None):
        self.worker = worker
        self.first_stage = first_stage
        self.max_in_flight = depth
        self.plans: list[StepPlan] = []
        self._late: list[LateFuture] = []

    def execute(self, plan):
        self.plans.append(plan)
        if self.max_in_flight > 1:
            self._late.append(LateFuture(self, plan))
            return self._late[-1]
        future: Future = Future()
        future.set_result(self.worker.execute(plan))
        return future

    def run_until(self, future):
        while not future.done():
            late = self._late.pop(0)
            if self.first_stage is not None:
                self.first_stage.execute(late.plan)
            late.set_result(self.worker.execute(late.plan))

    def call_all(self, method: str, *args):
        return [getattr(self.worker, method)(*args)]

    def check_health(self):
        self.worker.check_health()

    def shutdown(self):
        self.worker.shutdown()


class LateFuture(Future):
    def __init__(self, executor, plan):
        super().__init__()
        self.executor = executor
        self.plan = plan

    def result(self, timeout=None):
        self.executor.run_until(self)
        return super().result(timeout)


def check_blocks(scheduler) -> None:
    """The pool's accounts agree with what the running requests really hold."""
    pool = scheduler.kv_cache._pool
    held: dict[int, int] = {}
    for request in scheduler._running:
        for block_id in request.blocks.block_ids:
            held[block_id] = held.get(block_id, 0) + 1
    for block_id in range(pool.num_blocks):
        assert pool.ref_count(block_id) == held.get(block_id, 0), f"block {block_id}"
    free = list(pool._free)
    assert len(free) == len(set(free)) == pool.num_free
    assert set(free) == set(range(pool.num_blocks)) - set(held)
    assert {pool._digest_of[b]: b for b in pool._digest_of} == pool._block_of
    slots = [r.slot for r in scheduler._running]
    assert sorted(slots + scheduler._free_slots) == list(range(scheduler._config.max_num_seqs))


def collect(core, max_steps: int = 10_000) -> dict[str, SimpleNamespace]:
    """Step until idle; returns per request what its outputs add up to."""
    answers: dict[str, SimpleNamespace] = {}
    for _ in range(max_steps):
        if not core.has_work():
            return answers
        absorb(answers, core.step())
    raise AssertionError("the core never came to rest")


def absorb(answers, batch) -> None:
    for output in batch.outputs if batch else ():
        answer = answers.setdefault(
            output.request_id,
            SimpleNamespace(tokens=[], logprobs=[], prompt_logprobs=[], reason=None, stop_reason=None, error=None, cached=None),
        )
        assert answer.reason is None, "an output after the last one"
        answer.tokens += output.token_ids
        answer.logprobs += output.logprobs or []
        answer.prompt_logprobs += output.prompt_logprobs or []
        answer.cached = output.num_cached_tokens
        answer.error = output.error
        if output.finish_reason is not None:
            answer.reason, answer.stop_reason = str(output.finish_reason), output.stop_reason
