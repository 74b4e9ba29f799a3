"""`run_server()`: from options to a serving process and back. Called by `minivllm serve`, inside a uvloop loop."""

import asyncio
import errno
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.config.sections.server import ServerConfig
from minivllm.engine.async_engine import AsyncLLMEngine
from minivllm.errors import ConfigError, MinivllmError
from minivllm.utils.logging import get_logger

if TYPE_CHECKING:
    from minivllm.entrypoints.http.api_processes import ApiProcesses
    from minivllm.entrypoints.http.siblings import Siblings
    from minivllm.entrypoints.http.web_server import WebServer

logger = get_logger(__name__)

POLL = 0.02  # seconds between looks at what still runs
DEATH_GRACE = 0.3  # seconds for open streams to send their error event after the engine died
CLOSE_SECONDS = 3.0  # for other API processes to leave after this one


async def run_server(args: AsyncEngineArgs) -> None:
    """Serve until a signal. `ConfigError` if it cannot start; `EngineDeadError` if the engine dies.

    The first SIGTERM or SIGINT drains: no new requests, running ones may finish. The second stops at once.
    """
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    listener = bind(args.server)
    handled = (signal.SIGINT, signal.SIGTERM)

    def report_ready(engine: AsyncLLMEngine) -> None:
        names = ", ".join(engine.config.model.served_model_names)
        logger.info("Ready on %s in %.1f s: %s", address(args.server, listener), time.monotonic() - began, names)

    try:
        lifecycle = Lifecycle(args.server, listener, report_ready)
        for number in handled:
            loop.add_signal_handler(number, lifecycle.on_signal, number)
        # Before anything slow is imported here: its process imports torch meanwhile.
        if args.server.api_server_count == 1:
            await lifecycle.run(AsyncLLMEngine.from_engine_args(args))
        else:
            from minivllm.entrypoints.http.api_processes import start_all

            await lifecycle.run(*start_all(args, listener))
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        listener.close()
        if args.server.uds:
            _unlink(args.server.uds)


class Lifecycle:
    """Loading, serving, draining, stopping: one process, once."""

    def __init__(self, server: ServerConfig, listener: socket.socket, report_ready: Callable[[AsyncLLMEngine], object]):
        self._server = server
        self._listener = listener
        self._report_ready = report_ready
        self._others: ApiProcesses | None = None
        self._loop = asyncio.get_running_loop()
        self._signals: list[int] = []
        self._signalled: asyncio.Future[None] = self._loop.create_future()  # done at the first signal
        self._died: asyncio.Future[MinivllmError] = self._loop.create_future()  # when the engine is dead, or another process
        self._web: WebServer | None = None

    async def run(
        self, engine: AsyncLLMEngine, siblings: "Siblings | None" = None, others: "ApiProcesses | None" = None
    ) -> None:
        """Ends the engine, whatever happens, and `others`: the API processes that this one has started."""
        engine.on_death(self._on_death)
        self._others = others
        patience = 0.0
        try:
            if others is not None:
                others.watch(self._on_death)
            web = await self._load(engine, siblings)
            patience = CLOSE_SECONDS
            await self._serve(engine, web)
        finally:
            if others is not None and not self._died.done():
                others.end(patience)  # they need the cores until then
            engine.shutdown()
            if others is not None:
                others.end(patience)  # they leave when they see that the cores are gone

    def on_signal(self, number: int) -> None:
        self._signals.append(number)
        if not self._signalled.done():
            self._signalled.set_result(None)
        if self._others is not None:
            self._others.signal(number)
        if len(self._signals) > 1 and self._web is not None:
            self._web.stop(force=True)

    def _on_death(self, error: MinivllmError) -> None:
        if not self._died.done():
            self._died.set_result(error)

    async def _load(self, engine: AsyncLLMEngine, siblings: "Siblings | None") -> "WebServer":
        """Returns when the engine is ready; exits if a signal comes first."""
        loading = asyncio.ensure_future(engine.start())
        await asyncio.sleep(0)  # it may begin before the imports below hold this thread
        from minivllm.entrypoints.http.web_server import WebServer

        try:
            web = WebServer(self._server, engine.config, siblings)
        except BaseException:
            loading.cancel()
            raise
        ends: set[asyncio.Future[Any]] = {loading, self._signalled, self._died}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._died.done():  # another process; perhaps because it has heard before this one that the engine cannot start
            await asyncio.wait({loading}, timeout=DEATH_GRACE)
        if not loading.done():
            loading.cancel()
            if self._died.done():
                raise self._died.result()
            logger.info("Stopped before the model was loaded.")
            sys.exit(128 + self._signals[0])
        loading.result()
        return web

    async def _serve(self, engine: AsyncLLMEngine, web: "WebServer") -> None:
        await web.attach(engine)
        self._web = web
        serving = asyncio.ensure_future(web.serve(self._listener))
        while not web.started and not serving.done():
            await asyncio.sleep(0)
        ends: set[asyncio.Future[Any]] = {serving, self._signalled, self._died}
        if self._others is not None:
            await asyncio.wait({self._others.ready, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if not any(end.done() for end in ends):
            self._report_ready(engine)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._died.done():
            if engine.dead_error is None:
                engine.dead_error = self._died.result()
                engine.shutdown()
            await asyncio.sleep(DEATH_GRACE)
        elif not serving.done():
            await self._drain(web)
        web.stop(force=self._died.done())
        try:
            await serving
        except OSError as exc:  # another process took the port while the model was loading
            raise _bind_error(exc, self._server) from exc
        if self._died.done():
            raise self._died.result()

    async def _drain(self, web: "WebServer") -> None:
        timeout = self._server.shutdown_timeout
        await web.drain()
        if web.num_running:
            logger.info("Stopping when %d running requests are done, in %g s at most.", web.num_running, timeout)
        deadline = time.monotonic() + timeout
        while self._is_busy(web) and time.monotonic() < deadline and len(self._signals) < 2 and not self._died.done():
            await asyncio.sleep(POLL)
        if web.num_running:
            logger.warning("Ended %d running requests.", web.num_running)
            await web.end_requests()

    def _is_busy(self, web: "WebServer") -> bool:
        return bool(web.num_running) or (self._others is not None and bool(self._others.num_running))


def bind(server: ServerConfig) -> socket.socket:
    """A socket that is bound but does not listen yet: clients are refused until the engine is ready."""
    try:
        return _bind_unix(server.uds) if server.uds else _bind_tcp(server.host, server.port)
    except OSError as exc:
        raise _bind_error(exc, server) from exc


def _bind_tcp(host: str | None, port: int) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    return _bound(listener, lambda: listener.bind(where))


def _bind_unix(path: str) -> socket.socket:
    if os.path.exists(path):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise ConfigError(f"--uds {path}: the file exists and is no socket.", param="uds")
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)  # left behind by a server that is gone
            else:
                raise OSError(errno.EADDRINUSE, "in use")
    listener = socket.socket(socket.AF_UNIX)
    return _bound(listener, lambda: listener.bind(path))


def _bound(listener: socket.socket, bind_it: Callable[[], None]) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bind_it()
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_error(exc: OSError, server: ServerConfig) -> ConfigError:
    if server.uds:
        why = "another server listens there" if exc.errno == errno.EADDRINUSE else exc.strerror or str(exc)
        return ConfigError(f"Cannot listen on --uds {server.uds}: {why}.", param="uds")
    if isinstance(exc, socket.gaierror):
        return ConfigError(f"Cannot listen on --host {server.host}: {exc.strerror}.", param="host")
    if exc.errno == errno.EADDRINUSE:
        return ConfigError(f"Port {server.port} is in use: stop what listens there, or give another --port.", param="port")
    if exc.errno == errno.EACCES:
        return ConfigError(f"No permission to listen on port {server.port}: give a --port above 1023.", param="port")
    return ConfigError(f"Cannot listen on {server.host}, port {server.port}: {exc.strerror}.", param="host")


def address(server: ServerConfig, listener: socket.socket) -> str:
    """Where a user on this machine reaches the server."""
    if server.uds:
        return f"unix:{server.uds}"
    host, port = listener.getsockname()[:2]
    host = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"{'https' if server.ssl_certfile else 'http'}://{host}:{port}"


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
