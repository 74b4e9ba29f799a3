"""How the engine reaches its core: add, abort, outputs, call, close. Here in-process; in `process_client` by sockets."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from minivllm.messages.output import EngineReady, TokenOutputs
from minivllm.messages.request import EngineRequest


class AsyncCoreClient(Protocol):
    """A core elsewhere. After it died, `outputs` and `call` raise `EngineDeadError`, and so does everything later."""

    async def start(self) -> EngineReady:
        """Wait until the core can serve; ConfigError or EngineDeadError if it never will."""

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


class InprocClient:
    """The core in this process, for `LLMEngine`: `outputs` runs its next step."""

    def __init__(self, core: LocalCore, ready: EngineReady):
        self.ready = ready
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
        """The result of the first such call."""
        if method not in self._results:
            self._results[method] = self.call(method, make_args())
        return self._results[method]

    def close(self) -> None:
        self._core.shutdown()
