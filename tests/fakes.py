"""`FakeEngine`: the surface of `AsyncLLMEngine` without torch or a process, so that all HTTP behaviour can be tested.

It answers each prompt with `engine.script`, a list of words (one token each), and can be slow, refuse, or die.
"""

import asyncio
import json
import re
import struct
from collections.abc import AsyncGenerator, Callable, Set
from dataclasses import replace
from typing import Any

import httpx

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.config.engine_config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    GenerationConfig,
    LoadConfig,
    ModelConfig,
    ModelSpec,
    ObservabilityConfig,
    SchedulerConfig,
)
from minivllm.config.sections.pooling import PoolingConfig
from minivllm.engine.live_requests import LiveRequest
from minivllm.entrypoints.http.app import build_app, init_app_state
from minivllm.errors import ClientError, EngineDeadError, OverloadedError
from minivllm.messages.output import CompletionOutput, Logprob, RequestOutput
from minivllm.messages.pooling_output import Pooled, PoolingOutput, PoolingRequestOutput
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.sampling_params import OutputKind, SamplingParams

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SCRIPT = ["Hello", " wörld", " 🐢", "!", ' "quoted"', "\n"]


class FakeTokenizer:
    """Words with their leading blank, single other characters; ids in order of first use. `<|…|>` is one token."""

    pattern = re.compile(r"<\|\w+\|>| ?\w+|.", re.DOTALL)

    def __init__(self) -> None:
        self.words: list[str] = ["<|end|>"]
        self.chat_template: str | None = TEMPLATE
        self.chat_templates: dict[str, str] = {}
        self.template_tokens = {"eos_token": "<|end|>"}
        self.special_ids = frozenset({0})
        self.eos_token_id = 0
        self.bos_token_id = None
        self.num_stripped = 0

    @property
    def size(self) -> int:
        return 1000

    def id_of(self, word: str) -> int | None:
        return self.words.index(word) if word in self.words else None

    def learn(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.learn(word) for word in self.pattern.findall(text)]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(self.token_text(token) for token in ids)

    def token_text(self, token_id: int) -> str:
        return self.words[token_id] if token_id < len(self.words) else f"<{token_id}>"

    def token_bytes(self, token_id: int) -> bytes:
        return self.token_text(token_id).encode()


class FakeMetrics:
    def render(self) -> bytes:
        return b"# HELP minivllm:num_requests_running Requests running.\nminivllm:num_requests_running 0.0\n"


class FakeEngine:
    def __init__(
        self,
        script: list[str] | None = None,
        delay: float = 0.0,
        max_model_len: int = 100,
        pooling: PoolingConfig | None = None,
        **model: Any,
    ):
        """`delay` in seconds before each token or result; `model` are fields of `ModelConfig`."""
        fields: dict[str, Any] = {"model": "org/fake", "served_model_name": ("fake",), "max_model_len": max_model_len}
        self.config = EngineConfig(
            model=ModelConfig(**fields | model),
            load=LoadConfig(),
            cache=CacheConfig(),
            scheduler=SchedulerConfig(),
            device=DeviceConfig(),
            observability=ObservabilityConfig(),
            spec=ModelSpec.__new__(ModelSpec),
            pooling=pooling,
            generation=GenerationConfig(),
        )
        self.tokenizer = FakeTokenizer()
        self.max_model_len = max_model_len
        self.metrics = FakeMetrics()
        self.script = SCRIPT if script is None else script
        self.delay = delay
        self.cached_tokens = 0
        self.overloaded: OverloadedError | None = None
        self.fail_after: int | None = None  # raise a bare RuntimeError after so many tokens
        self.requests: list[tuple[Any, SamplingParams, str, int]] = []
        self.timeouts: list[float | None] = []
        self.live: list[LiveRequest] = []
        self.aborted: list[str] = []
        self.pooled: list[tuple[Any, PoolingParams, str, int]] = []
        self.running: list[str] = []
        self.dead_error: EngineDeadError | None = None
        self.is_shut_down = False
        self._death = asyncio.Event()
        self._callbacks: list[Callable[[EngineDeadError], None]] = []

    def set_defaults(self, **defaults: Any) -> None:
        self.config = replace(self.config, generation=GenerationConfig(defaults=defaults))

    async def start(self) -> None:
        await asyncio.sleep(0)

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        arrival_time: float | None = None,
        timeout: float | None = None,
        enough: Set[int] = frozenset(),
    ) -> AsyncGenerator[RequestOutput, None]:
        await self.check_health()
        ids = prompt["prompt_token_ids"]
        if sampling_params.truncate_prompt_tokens is not None and sampling_params.truncate_prompt_tokens > 0:
            ids = ids[-sampling_params.truncate_prompt_tokens :]
        if len(ids) >= self.max_model_len:
            raise ClientError(f"This model's maximum context length is {self.max_model_len} tokens.", param="input_tokens")
        self.requests.append((prompt, sampling_params, request_id, priority))
        self.timeouts.append(timeout)
        self.running.append(request_id)
        finished = False
        try:
            async for output in self._run(ids, sampling_params, request_id):
                yield output
                if len(enough) == sampling_params.n and not output.finished:
                    ends = [CompletionOutput(index, finish_reason="stop") for index in enough]
                    yield RequestOutput(request_id, None, ids, None, ends, True)
                    break
            finished = True
        finally:
            self.running.remove(request_id)
            if not finished:
                self.aborted.append(request_id)

    async def _run(self, ids: list[int], params: SamplingParams, request_id: str) -> AsyncGenerator[RequestOutput, None]:
        words = self.script if params.max_tokens is None else self.script[: params.max_tokens]
        reason = "stop" if len(words) == len(self.script) else "length"
        done: list[CompletionOutput] = [self._choice(index, [], params) for index in range(params.n)]
        first = True
        for position, word in enumerate(words):
            await self._wait()
            if self.fail_after == position:
                raise RuntimeError("secret detail")
            new = [self._choice(index, [word], params) for index in range(params.n)]
            if position == len(words) - 1:
                for choice in new:
                    choice.finish_reason = reason
            for total, choice in zip(done, new, strict=True):
                total.text += choice.text
                total.token_ids = total.token_ids + choice.token_ids
                total.logprobs = None if choice.logprobs is None else (total.logprobs or []) + choice.logprobs
                total.finish_reason = choice.finish_reason
            if params.output_kind is OutputKind.DELTA:
                yield self._output(ids, params, request_id, new, first)
                first = False
        if params.output_kind is not OutputKind.DELTA or not words:
            for choice in done:
                choice.finish_reason = reason
            yield self._output(ids, params, request_id, done, True)

    async def _wait(self) -> None:
        if self.delay:
            try:
                await asyncio.wait_for(self._death.wait(), self.delay)
            except asyncio.TimeoutError:
                return
        await self.check_health()

    def _choice(self, index: int, words: list[str], params: SamplingParams) -> CompletionOutput:
        ids = [self.tokenizer.learn(word) for word in words]
        logprobs = None if params.logprobs is None else [self._logprobs(token, params.logprobs) for token in ids]
        return CompletionOutput(index, "".join(words), ids, logprobs=logprobs)

    def _logprobs(self, token: int, count: int) -> dict[int, Logprob]:
        """The token itself, third in rank, and the `count` most probable ones."""
        entry = {token: Logprob(-3.0, 3, self.tokenizer.token_text(token))}
        for rank in range(1, count + 1):
            entry.setdefault(900 + rank, Logprob(-1.0 * rank, rank, f"<{900 + rank}>"))
        return entry

    def _output(
        self, ids: list[int], params: SamplingParams, request_id: str, choices: list[CompletionOutput], first: bool
    ) -> RequestOutput:
        prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if params.prompt_logprobs is not None and first:
            prompt_logprobs = [None, *(self._logprobs(token, params.prompt_logprobs) for token in ids[1:])]
        return RequestOutput(
            request_id, None, ids, prompt_logprobs, choices, choices[0].finished(), num_cached_tokens=self.cached_tokens
        )

    async def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, *, priority: int = 0, timeout: float | None = None
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """The number of words, then ones; for each token if asked so."""
        await self.check_health()
        self.pooled.append((prompt, pooling_params, request_id, priority))
        ids = prompt.get("prompt_token_ids")
        words = f"{prompt.get('prompt', '')} {prompt.get('second', '')}".split() if ids is None else ids
        if len(words) > self.max_model_len:
            raise ClientError(f"This model's maximum context length is {self.max_model_len} tokens.", param="input")
        self.running.append(request_id)
        finished = False
        try:
            await self._wait()
            assert self.config.pooling is not None
            width = self.config.pooling.width
            row = [float(len(words)), *[1.0] * (width - 1)]
            rows = len(words) if pooling_params.task == "token_embed" else 1
            shape = [rows, width] if pooling_params.task == "token_embed" else [width]
            pooled = Pooled(struct.pack(f"{rows * width}f", *row * rows), shape)
            finished = True
            yield PoolingRequestOutput(request_id, PoolingOutput(pooled), list(range(len(words))))
        finally:
            self.running.remove(request_id)
            if not finished:
                self.aborted.append(request_id)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def live_requests(self) -> list[LiveRequest]:
        return self.live

    async def check_health(self) -> None:
        if self.dead_error is not None:
            raise self.dead_error

    def check_admission(self, num_requests: int) -> None:
        if self.overloaded is not None:
            raise self.overloaded

    @property
    def num_running_requests(self) -> int:
        return len(self.running)

    def on_death(self, callback: Callable[[EngineDeadError], None]) -> None:
        self._callbacks.append(callback)

    def die(self, message: str = "The engine core died.") -> None:
        self.dead_error = EngineDeadError(message)
        self._death.set()
        for callback in self._callbacks:
            callback(self.dead_error)

    def shutdown(self) -> None:
        self.is_shut_down = True


class Client:
    """The whole app around a `FakeEngine`, called in this process; `server` are options of `AsyncEngineArgs`."""

    def __init__(self, engine: FakeEngine, **server: Any):
        args = AsyncEngineArgs(model="org/fake", **server)
        self.app = build_app(args.server)
        self.engine = engine
        init_app_state(engine, self.app.state, args.server)  # type: ignore[arg-type]

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                return await client.request(method, path, **options)

        return asyncio.run(call())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **options)

    def raw(self, path: str, content: str | bytes, content_type: str = "application/json") -> httpx.Response:
        return self.request("POST", path, content=content, headers={"Content-Type": content_type})

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Payloads of a streamed reply; the last is "[DONE]"."""
        reply = self.post(path, body | {"stream": True})
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8", reply.text
        blocks = reply.text.removesuffix("\n\n").split("\n\n")
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
        return [block[6:] if block == "data: [DONE]" else json.loads(block[6:]) for block in blocks]
