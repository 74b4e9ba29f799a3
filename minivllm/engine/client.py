"""How the engine reaches its core: add, abort, outputs, call, close. Here in-process; in `process_client` by sockets."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from minivllm.messages.output import EngineReady, TokenOutputs
from minivllm.messages.request import EngineRequest

T = TypeVar("T")


class AsyncCoreClient(Protocol):
    """A core elsewhere, or several. After one died, `outputs` and `call` raise `EngineDeadError`, and so does all later."""

    async def start(self) -> Sequence[EngineReady]:
        """Wait until each core can serve; ConfigError or EngineDeadError if one never will."""

    def add(self, requests: Sequence[EngineRequest]) -> None: ...
    def abort(self, request_ids: Sequence[str]) -> None: ...
    async def outputs(self) -> TokenOutputs: ...
    async def call(self, method: str, args: Sequence[Any]) -> object: ...
    async def call_once(self, method: str, make_args: Callable[[], Sequence[Any]]) -> object:
        """The result of the first such call; `make_args` may take its time, and runs in a thread."""

    def close(self) -> None: ...


class LocalCore(Protocol):
    """The surface of `core.EngineCore` that is used here."""

    def add(self, requests: Sequence[EngineRequest]) -> None: ...
    def abort(self, request_ids: Sequence[str]) -> None: ...
    def step(self) -> TokenOutputs | None: ...
    def has_work(self) -> bool: ...
    def call(self, method: str, args: list[Any]) -> object: ...
    def shutdown(self) -> None: ...


class CoreClient(Protocol):
    """What `LLMEngine` needs."""

    cores: Sequence[EngineReady]

    def add(self, requests: Sequence[EngineRequest]) -> None: ...
    def abort(self, request_ids: Sequence[str]) -> None: ...
    def outputs(self) -> TokenOutputs | None:
        """Of one more step; to be called while a request is open. None: there is nothing to tell."""

    def call(self, method: str, args: Sequence[Any]) -> object: ...
    def call_once(self, method: str, make_args: Callable[[], Sequence[Any]]) -> object:
        """The result of the first such call."""

    def close(self) -> None: ...


class InprocClient:
    """A `CoreClient` with the core in this process: `outputs` runs its next step."""

    def __init__(self, core: LocalCore, ready: EngineReady):
        self.cores: Sequence[EngineReady] = [ready]
        self._core = core
        self._results: dict[str, object] = {}  # of `call_once`

    def add(self, requests: Sequence[EngineRequest]) -> None:
        self._core.add(requests)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._core.abort(request_ids)

    def outputs(self) -> TokenOutputs | None:
        return self._core.step() if self._core.has_work() else None

    def call(self, method: str, args: Sequence[Any]) -> object:
        return self._core.call(method, list(args))

    def call_once(self, method: str, make_args: Callable[[], Sequence[Any]]) -> object:
        if method not in self._results:
            self._results[method] = self.call(method, make_args())
        return self._results[method]

    def close(self) -> None:
        self._core.shutdown()


class BlockingClient:
    """A `CoreClient` over an `AsyncCoreClient`, whose event loop gets a thread: the caller may have a loop of its own.

    The cores end with `close`, or when nobody holds this any more.
    """

    def __init__(self, client: AsyncCoreClient):
        """Waits until each core can serve; ends them all if one never will."""
        self._client = client
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="minivllm-cores", daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end, client, self._loop, thread)
        try:
            self.cores: Sequence[EngineReady] = self._run(client.start())
        except BaseException:
            self.close()
            raise

    def add(self, requests: Sequence[EngineRequest]) -> None:
        self._run(_awaitable(self._client.add, requests))

    def abort(self, request_ids: Sequence[str]) -> None:
        self._run(_awaitable(self._client.abort, request_ids))

    def outputs(self) -> TokenOutputs | None:
        return self._run(self._client.outputs())

    def call(self, method: str, args: Sequence[Any]) -> object:
        return self._run(self._client.call(method, args))

    def call_once(self, method: str, make_args: Callable[[], Sequence[Any]]) -> object:
        return self._run(self._client.call_once(method, make_args))

    def close(self) -> None:
        """May be called twice."""
        self._end()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


async def _awaitable(function: Callable[..., None], *args: Any) -> None:
    function(*args)


def _end(client: AsyncCoreClient, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    async def stop() -> None:
        client.close()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        loop.stop()

    asyncio.run_coroutine_threadsafe(stop(), loop)
    if threading.current_thread() is not thread:  # garbage is collected in any thread
        thread.join()
        loop.close()
