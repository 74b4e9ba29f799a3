"""Server-sent events: an async generator of encoded events becomes a reply, and ends when the client does."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from minivllm.entrypoints.http.errors import ClientDisconnected, error_event
from minivllm.errors import OverloadedError

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_SECONDS = 15.0  # proxies commonly give up after 30 to 60 silent seconds

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """Sends what `events` yields (whole events, as bytes), then `end`.

    The status line waits for the first event, so that a refusal still gets its own status; after that an error is one
    event. If nothing comes for `keep_alive` seconds, `comment` goes out (and with it the status). A client that
    hangs up closes `events` at once.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        keep_alive: float = KEEP_ALIVE_SECONDS,
        *,
        end: bytes = DONE,
        comment: bytes = KEEP_ALIVE,
        error_event: Callable[[BaseException], bytes] = error_event,
    ):
        self.status_code = 200
        self.background = None
        self.raw_headers = list(_HEADERS)
        self._events = events
        self._keep_alive = keep_alive
        self._end = end
        self._comment = comment
        self._error_event = error_event
        self._started = False
        self._silent = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def comment() -> None:
            if self._silent:
                await self._start(send)
                await send({"type": "http.response.body", "body": self._comment, "more_body": True})
            self._silent = True

        try:
            await until_disconnect(receive, self._send_events(send), self._keep_alive, comment)
        except ClientDisconnected:
            return
        except OverloadedError as exc:  # the server stops while the stream is open
            if not self._started:
                raise
            await send({"type": "http.response.body", "body": self._error_event(exc) + self._end})

    async def _send_events(self, send: Send) -> None:
        end = self._end
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    if not self._started:
                        await self._start(send)
                    self._silent = False
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except Exception as exc:
                if not self._started:
                    raise
                end = self._error_event(exc) + self._end
        await self._start(send)
        await send({"type": "http.response.body", "body": end})

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


async def until_disconnect(
    receive: Receive,
    work: Coroutine[Any, Any, T],
    interval: float | None = None,
    on_interval: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """The result of `work`, which is cancelled when the client hangs up (`ClientDisconnected`) or when this task is
    cancelled because the server stops (`OverloadedError`). `on_interval` is awaited every `interval` seconds."""
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(receive, interval, on_interval))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        watcher.result()
        raise ClientDisconnected
    except asyncio.CancelledError:
        raise OverloadedError("The server is shutting down.") from None
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _wait_for_disconnect(
    receive: Receive, interval: float | None, on_interval: Callable[[], Awaitable[None]] | None
) -> None:
    while True:
        try:
            message = await asyncio.wait_for(receive(), interval)
        except asyncio.TimeoutError:
            if on_interval is not None:
                await on_interval()
            continue
        if message["type"] == "http.disconnect":
            return
