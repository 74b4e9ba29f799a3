"""Requests to our own routes without a socket: an app of its own on the same engine, whose requests are background work."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message

from minivllm.messages.output import RequestOutput
from minivllm.messages.pooling_output import PoolingOutput, PoolingRequestOutput
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.prompt import Prompt
from minivllm.messages.request import BACKGROUND_PRIORITY
from minivllm.messages.sampling_params import SamplingParams

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine

Call = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]  # (path, JSON body) → (status, JSON body)


class BackgroundEngine:
    """The engine, for work that waits behind all requests of clients and is preempted first."""

    def __init__(self, engine: "AsyncLLMEngine"):
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self, prompt: Prompt, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        options["priority"] = BACKGROUND_PRIORITY
        return self._engine.generate(prompt, sampling_params, request_id, **options)

    def encode(
        self, prompt: Prompt, pooling_params: PoolingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        options["priority"] = BACKGROUND_PRIORITY
        return self._engine.encode(prompt, pooling_params, request_id, **options)


def caller(app: ASGIApp) -> Call:
    """POSTs to `app`. Cancelling the call is what a client does who hangs up."""

    async def call(path: str, body: bytes) -> tuple[int, bytes]:
        sent: list[Message] = []
        given = iter([body])
        hung_up = asyncio.Event()

        async def receive() -> Message:
            if (data := next(given, None)) is None:
                await hung_up.wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
            "server": None, "client": None,
        }  # fmt: skip
        serving = asyncio.ensure_future(app(scope, receive, send))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            hung_up.set()
            await asyncio.wait({serving})
            raise
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], content

    return call
