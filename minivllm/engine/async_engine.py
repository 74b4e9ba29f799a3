"""`AsyncLLMEngine`: the engine as the HTTP server sees it. One per process; all of it runs on one event loop."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from time import monotonic
from typing import Any, cast

import msgspec

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.config.engine_config import EngineConfig
from minivllm.engine.admission import Admission
from minivllm.engine.balancer import connect, start_cores
from minivllm.engine.client import AsyncCoreClient
from minivllm.engine.input_processor import InputProcessor, TokenizedPrompt
from minivllm.engine.launcher import Core
from minivllm.engine.live_requests import LiveRequest, live_requests
from minivllm.engine.output_processor import OutputProcessor
from minivllm.errors import EngineDeadError, MinivllmError, OverloadedError
from minivllm.messages.output import EngineReady, RequestOutput
from minivllm.messages.pooling_output import PoolingOutput, PoolingRequestOutput
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.prompt import Prompt
from minivllm.messages.request import EngineRequest
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.stats import RequestState
from minivllm.metrics.log_line import LOG_INTERVAL, LogLine
from minivllm.metrics.recorder import COLUMNS, Metrics
from minivllm.text.tokenizer import Tokenizer, load_tokenizer
from minivllm.utils.board import Board
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

LONG_TEXT = 20_000  # characters; a longer prompt is tokenized in a thread, or all streams would stand still meanwhile


class AsyncLLMEngine:
    """Requests in, streams of `RequestOutput` out. Made by `from_engine_args`, which starts the core process at once.

    `await start()` waits until the core can serve; `generate` and `encode` do so by themselves.
    When a core dies, every open stream and every later call raise the same `EngineDeadError`.
    """

    def __init__(self, config: EngineConfig, client: AsyncCoreClient, tokenizer: Tokenizer, board: Board | None = None):
        """`board`: of several API processes, each with an engine of its own over the same cores."""
        board = board or make_board(config)
        self.config = config
        self.tokenizer = tokenizer
        self.max_model_len = config.model.max_model_len
        num_cores = config.parallel.data_parallel_size
        self.metrics = Metrics(config.model.served_model_names[0], config.model.max_model_len, num_cores, board)
        self.dead_error: MinivllmError | None = None
        self._client = client
        self._inputs = InputProcessor(config, tokenizer, self.max_model_len)
        self._outputs = OutputProcessor(tokenizer, self.metrics, board)
        self._admission = Admission(config.scheduler.max_num_queued_reqs, config.scheduler.max_num_seqs * num_cores)
        self._starting: asyncio.Task[None] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._log = _StatsLog(self.metrics, config.observability.disable_log_stats or board.own > 0)
        self._threads: ThreadPoolExecutor | None = None
        self._numbers = itertools.count(board.own + 1, board.num_rows)  # of requests; no other API process has the same
        self._death_callbacks: list[Callable[[MinivllmError], None]] = []

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs) -> "AsyncLLMEngine":
        return cls.from_config(args.resolve())

    @classmethod
    def from_config(
        cls, config: EngineConfig, cores: Sequence[Core] | None = None, board: Board | None = None
    ) -> "AsyncLLMEngine":
        """Start the core processes, if none are given; the tokenizer is read while they load the model."""
        client = connect(config, start_cores(config) if cores is None else cores, board)
        try:
            return cls(config, client, load_tokenizer(config.model.tokenizer, config.model.trust_remote_code), board)
        except BaseException:
            client.close()
            raise

    async def start(self) -> None:
        """Wait until the core can serve. ConfigError if it cannot with this configuration, EngineDeadError if it died."""
        if self.dead_error is not None:
            raise self.dead_error
        if self._pump is None:
            if self._starting is None:
                self._starting = asyncio.create_task(self._start(), name="minivllm-start")
            await asyncio.shield(self._starting)

    @property
    def is_running(self) -> bool:
        return self._pump is not None and self.dead_error is None

    @property
    def num_running_requests(self) -> int:
        """Streams that have not ended."""
        return self._outputs.num_streams

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        arrival_time: float | None = None,
        timeout: float | None = None,
        enough: Set[int] = frozenset(),
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they come, by `sampling_params.output_kind`. Closing the generator aborts the request.

        A choice whose index the caller has put into `enough` by its next call ends there, with finish reason "stop".

        After `timeout` seconds from its arrival it ends with finish reason "timeout"; `DeadlineError` if it has no token.

        What can be refused is refused before the first output: `ClientError`, `OverloadedError`.
        Two requests may have the same `request_id`.
        """
        if arrival_time is None:
            arrival_time = monotonic()
        await self.start()
        self.check_admission(sampling_params.n)
        tokenized = await self._tokenize(prompt, self._inputs.tokenize, prompt)
        if sampling_params.structured_outputs is not None:
            await self._client.call_once("set_tokenizer", self._inputs.grammar_facts)
        core_id = self._core_id(request_id)
        request = self._inputs.process(core_id, tokenized, sampling_params, priority, arrival_time)
        async with aclosing(self._run(request_id, tokenized.text, request, timeout, enough)) as outputs:
            async for output in outputs:
                yield cast(RequestOutput, output)

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        priority: int = 0,
        arrival_time: float | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """As `generate`, for pooling models: one output, when the whole text has been read."""
        if arrival_time is None:
            arrival_time = monotonic()
        await self.start()
        self.check_admission()
        tokenized = await self._tokenize(prompt, self._inputs.tokenize_for_pooling, prompt, pooling_params)
        core_id = self._core_id(request_id)
        request = self._inputs.process_pooling(core_id, tokenized, pooling_params, priority, arrival_time)
        async with aclosing(self._run(request_id, tokenized.text, request, timeout)) as outputs:
            async for output in outputs:
                yield cast(PoolingRequestOutput[PoolingOutput], output)

    async def abort(self, request_id: str) -> None:
        """End every request with this id; their streams end with finish reason "abort"."""
        self._abort(self._outputs.abort(request_id))

    async def live_requests(self) -> list[LiveRequest]:
        """What is open now, oldest first."""
        states = msgspec.convert(await self.call("request_states"), list[RequestState])
        return live_requests(self._outputs.streams, states, monotonic())

    async def check_health(self) -> None:
        """Raises the error that the engine died of."""
        if self.dead_error is not None:
            raise self.dead_error

    async def call(self, method: str, *args: Any) -> object:
        """Call a `@remote` method of the core; of each, where there are several."""
        await self.start()
        return await self._client.call(method, args)

    def check_admission(self, num_requests: int = 1) -> None:
        """Raise `OverloadedError`, with a Retry-After, if the queue has no room for so many sequences."""
        try:
            self._admission.check(num_requests, self._outputs.num_sequences_of_all, self.metrics.num_waiting)
        except OverloadedError:
            self.metrics.recorders[0].record_rejection("queue_full", num_requests)
            raise

    def on_death(self, callback: Callable[[MinivllmError], None]) -> None:
        """`callback(error)` will be called once if the core dies."""
        self._death_callbacks.append(callback)

    async def drain(self, timeout: float) -> bool:
        """Wait until no stream is open, at most `timeout` seconds. True if none is."""
        deadline = monotonic() + timeout
        while self._outputs.num_streams and self.dead_error is None and monotonic() < deadline:
            await asyncio.sleep(0.05)
        return not self._outputs.num_streams

    def shutdown(self) -> None:
        """End the core process and every open stream. May be called twice."""
        if self.dead_error is None:
            self.dead_error = EngineDeadError("The engine has been shut down.")
        for task in (self._starting, self._pump):
            if task is not None and not task.get_loop().is_closed():
                task.cancel()
        self._outputs.fail_all(self.dead_error)
        self._log.stop()
        self._client.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _start(self) -> None:
        try:
            cores = await self._client.start()
        except MinivllmError as error:
            self.dead_error = error
            raise
        self._set_facts(cores)
        self._pump = asyncio.create_task(self._run_pump(), name="minivllm-outputs")

    def _set_facts(self, cores: Sequence[EngineReady]) -> None:
        self.max_model_len = min(ready.max_model_len for ready in cores)
        self._inputs = InputProcessor(self.config, self.tokenizer, self.max_model_len)
        cache = self.config.cache
        for recorder, ready in zip(self.metrics.recorders, cores, strict=True):
            facts = {"block_size": ready.block_size, "num_gpu_blocks": ready.num_blocks}
            recorder.set_info(
                facts | {"cache_dtype": cache.kv_cache_dtype, "enable_prefix_caching": cache.enable_prefix_caching}
            )

    async def _run_pump(self) -> None:
        """Move every batch of the core to the streams: one wake-up a batch, until the core is dead."""
        try:
            while True:
                batch = await self._client.outputs()
                self._log.touch()
                num_before = self._outputs.num_sequences
                touched, aborts = self._outputs.process(batch)
                self._abort(aborts)
                self._admission.record_finished(num_before - self._outputs.num_sequences)
                for stream in touched:
                    stream.wake()
        except MinivllmError as error:
            self._die(error)
        except Exception:
            logger.exception("the engine's output pump failed")
            self._die(EngineDeadError("The engine failed on an output of its core."))

    def _die(self, error: MinivllmError) -> None:
        if self.dead_error is not None:
            return
        self.dead_error = error
        logger.error("%s", error)
        self._outputs.fail_all(error)
        self._log.stop()
        for callback in self._death_callbacks:
            callback(error)

    def _core_id(self, request_id: str) -> str:
        return f"{request_id}#{next(self._numbers)}"

    async def _run(
        self, request_id: str, text: str | None, request: EngineRequest, timeout: float | None, enough: Set[int] = frozenset()
    ) -> AsyncGenerator[RequestOutput | PoolingRequestOutput[PoolingOutput], None]:
        if self.dead_error is not None:
            raise self.dead_error
        stream, children = self._outputs.add(request_id, text, request)
        timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            left = request.arrival_time + timeout - monotonic()
            timer = asyncio.get_running_loop().call_later(left, lambda: self._abort(self._outputs.expire(stream)))
        try:
            self._client.add(children)
            while True:
                output = await stream.next()
                yield output
                if output.finished:
                    return
                if enough:
                    self._abort(self._outputs.end_choices(stream, enough))
        finally:
            if timer is not None:
                timer.cancel()
            self._abort(self._outputs.drop(stream))

    async def _tokenize(self, prompt: Prompt, tokenize: Callable[..., TokenizedPrompt], *arguments: Any) -> TokenizedPrompt:
        texts = [prompt.get("prompt"), prompt.get("second")] if isinstance(prompt, dict) else [prompt]
        if sum(len(text) for text in texts if isinstance(text, str)) <= LONG_TEXT:
            return tokenize(*arguments)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "minivllm-tokenize")
        return await asyncio.get_running_loop().run_in_executor(self._threads, tokenize, *arguments)

    def _abort(self, core_ids: list[str]) -> None:
        if core_ids and self.dead_error is None:
            self._client.abort(core_ids)


def make_board(config: EngineConfig, own: int = 0, memory: int | None = None) -> Board:
    """Where API processes tell each other what they have given to the cores, and their metrics."""
    num_columns = COLUMNS * (config.parallel.data_parallel_size + 1)
    return Board(num_columns, config.parallel.num_api_processes, own, memory)


class _StatsLog:
    """Logs each core's throughput line every ten seconds, with a timer only while there is something to log."""

    def __init__(self, metrics: Metrics, disabled: bool):
        self._lines = [LogLine(recorder, monotonic()) for recorder in metrics.recorders]
        self._disabled = disabled
        self._timer: asyncio.TimerHandle | None = None

    def touch(self) -> None:
        """Called before each batch: the first one after a rest starts the clock."""
        if self._timer is None and not self._disabled:
            for line in self._lines:
                line.restart(monotonic())
            self._timer = asyncio.get_running_loop().call_later(LOG_INTERVAL, self._write)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _write(self) -> None:
        self._timer = None
        texts = [text for line in self._lines if (text := line.text(monotonic())) is not None]
        for text in texts:
            logger.info("%s", text)
        if texts:
            self._timer = asyncio.get_running_loop().call_later(LOG_INTERVAL, self._write)
