"""`ProcessClient`: the five verbs over sockets to a core process, and the watch over its life."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from minivllm.engine.launcher import Core
from minivllm.errors import ClientError, ConfigError, EngineDeadError, MinivllmError
from minivllm.ipc.codec import decode_output, encode
from minivllm.messages.output import CallReply, EngineDead, EngineReady, TokenOutputs
from minivllm.messages.request import AbortRequests, AddRequests, CallMethod, EngineRequest
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

LAST_WORDS_SECONDS = 0.2  # a dying core's last message may come a little after its process has ended
POLL_SECONDS = 0.25  # between looks at the process where the system has no pidfd
RETRY_SECONDS = 0.002  # until the core's inbox is connected
PROGRESS_SECONDS = 2.0  # between signs of life while the core starts


class ProcessClient:
    """An `AsyncCoreClient`. All of it runs on the event loop of `start`; nothing here blocks, and there are no tasks."""

    def __init__(self, process: Core, client: int = 0):
        """`client`: the number of this API process, if there are several."""
        self._process = process
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._batches: deque[TokenOutputs] = deque()
        self._waiter: asyncio.Future[None] | None = None  # of `outputs`
        self._ready: asyncio.Future[EngineReady] | None = None
        self._calls: dict[int, asyncio.Future[object]] = {}
        self._num_calls = 0
        self._once: dict[str, asyncio.Task[object]] = {}
        self._unsent: deque[bytes] = deque()
        self._pidfd: int | None = None
        self._poll: asyncio.TimerHandle | None = None
        self._error: MinivllmError | None = None

    async def start(self) -> Sequence[EngineReady]:
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        self._loop.add_reader(self._process.outbox.fileno(), self._receive)
        self._pidfd = self._process.open_pidfd()
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._on_exit)
        else:
            self._poll_process()
        self._receive()
        begin = self._loop.time()
        while not (await asyncio.wait((self._ready,), timeout=PROGRESS_SECONDS))[0]:
            logger.info("starting the %s (%.0f s)", self._process.name, self._loop.time() - begin)
        return [self._ready.result()]

    def add(self, requests: Sequence[EngineRequest]) -> None:
        self._send(AddRequests(list(requests), self._client))

    def abort(self, request_ids: Sequence[str]) -> None:
        self._send(AbortRequests(list(request_ids)))

    async def outputs(self) -> TokenOutputs:
        """The next batch; those that came before a core's death are still delivered."""
        while not self._batches:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._batches.popleft()

    async def call(self, method: str, args: Sequence[Any]) -> object:
        self._num_calls += 1
        call_id = self._num_calls
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._send(CallMethod(call_id, method, list(args), self._client))
            return await future
        finally:
            del self._calls[call_id]

    async def call_once(self, method: str, make_args: Callable[[], Sequence[Any]]) -> object:
        task = self._once.get(method)
        if task is None:
            task = self._once[method] = asyncio.create_task(self._make_and_call(method, make_args), name=method)
        return await asyncio.shield(task)

    def close(self) -> None:
        """End the core; whoever still waits for it gets `EngineDeadError`."""
        self._stop_watching()
        self._fail(EngineDeadError("The engine has been shut down."))
        started = self._ready is not None and self._ready.done() and self._ready.exception() is None
        if started:
            self._process.close()
        else:
            self._process.close(patience=0)  # while it loads it does not look at its stdin

    async def _make_and_call(self, method: str, make_args: Callable[[], Sequence[Any]]) -> object:
        return await self.call(method, await asyncio.to_thread(make_args))

    def _send(self, message: AddRequests | AbortRequests | CallMethod) -> None:
        if self._error is not None:
            raise self._error
        self._unsent.append(encode(message))
        self._flush()

    def _flush(self) -> None:
        """Send what waits. Without a peer nothing can be sent: a fresh core connects its inbox after it says it is ready."""
        try:
            while self._unsent and self._error is None:
                self._process.inbox.send(self._unsent[0], zmq.NOBLOCK)
                self._unsent.popleft()
        except zmq.Again:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._flush)

    def _receive(self) -> None:
        """Take all that has come: the socket's descriptor tells of new messages only when none were left."""
        while True:
            try:
                data = self._process.outbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._handle(data)
        if self._batches:
            self._wake()

    def _handle(self, data: bytes) -> None:
        match decode_output(data):
            case TokenOutputs() as batch:
                self._batches.append(batch)
            case CallReply(call_id, result, error):
                future = self._calls.get(call_id)
                if future is not None and not future.done():
                    if error is None:
                        future.set_result(result)
                    else:
                        future.set_exception(ClientError(error))
            case EngineReady() as ready:
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(ready)
            case EngineDead(message, is_config):
                self._fail(ConfigError(message) if is_config else EngineDeadError(message))

    def _on_exit(self) -> None:
        self._stop_watching(keep_socket=True)
        assert self._loop is not None
        self._poll = self._loop.call_later(LAST_WORDS_SECONDS, self._declare_dead)

    def _poll_process(self) -> None:
        assert self._loop is not None
        watch = self._poll_process if self._process.exit_text() is None else self._declare_dead
        self._poll = self._loop.call_later(POLL_SECONDS, watch)

    def _declare_dead(self) -> None:
        self._stop_watching()
        self._receive()
        how = self._process.exit_text() or "has closed"
        self._fail(EngineDeadError(f"The {self._process.name} (process {self._process.pid}) {how}."))

    def _fail(self, error: MinivllmError) -> None:
        """The first reason stands."""
        if self._error is not None:
            return
        self._error = error
        for future in (self._ready, *self._calls.values()):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # nobody has to look at it
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stop_watching(self, keep_socket: bool = False) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        if self._poll is not None:
            self._poll.cancel()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if not keep_socket and not self._process.outbox.closed:
            self._loop.remove_reader(self._process.outbox.fileno())
