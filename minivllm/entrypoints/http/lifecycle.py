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
from typing import TYPE_CHECKING

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.config.sections.server import ServerConfig
from minivllm.engine.async_engine import AsyncLLMEngine
from minivllm.errors import ConfigError, EngineDeadError
from minivllm.utils.logging import get_logger

if TYPE_CHECKING:
    from minivllm.entrypoints.http.web_server import WebServer

logger = get_logger(__name__)

POLL = 0.02  # seconds between looks at what still runs
DEATH_GRACE = 0.3  # seconds for open streams to send their error event after the engine died


async def run_server(args: AsyncEngineArgs) -> None:
    """Serve until a signal. `ConfigError` if it cannot start; `EngineDeadError` if the engine dies.

    The first SIGTERM or SIGINT drains: no new requests, running ones may finish. The second stops at once.
    """
    began = time.monotonic()
    listener = bind(args.server)
    try:
        await Lifecycle(args, listener, began).run()
    finally:
        listener.close()
        if args.server.uds:
            _unlink(args.server.uds)


class Lifecycle:
    """Loading, serving, draining, stopping: one process, once."""

    def __init__(self, args: AsyncEngineArgs, listener: socket.socket, began: float):
        self._args = args
        self._listener = listener
        self._began = began
        self._loop = asyncio.get_running_loop()
        self._signals: list[int] = []
        self._signalled: asyncio.Future[None] = self._loop.create_future()  # done at the first signal
        self._died: asyncio.Future[None] = self._loop.create_future()  # done when the engine is dead
        self._web: WebServer | None = None

    async def run(self) -> None:
        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            self._loop.add_signal_handler(number, self._on_signal, number)
        try:
            # Before anything slow is imported here: its process imports torch meanwhile.
            engine = AsyncLLMEngine.from_engine_args(self._args)
            engine.on_death(lambda _: self._died.set_result(None))
            try:
                web = await self._load(engine)
                await self._serve(engine, web)
            finally:
                engine.shutdown()
        finally:
            for number in handled:
                self._loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        if not self._signalled.done():
            self._signalled.set_result(None)
        if len(self._signals) > 1 and self._web is not None:
            self._web.stop(force=True)

    async def _load(self, engine: AsyncLLMEngine) -> "WebServer":
        """Returns when the engine is ready; exits if a signal comes first."""
        loading = asyncio.ensure_future(engine.start())
        await asyncio.sleep(0)  # it may begin before the imports below hold this thread
        from minivllm.entrypoints.http.web_server import WebServer

        try:
            web = WebServer(self._args)
        except BaseException:
            loading.cancel()
            raise
        await asyncio.wait({loading, self._signalled}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            loading.cancel()
            logger.info("Stopped before the model was loaded.")
            sys.exit(128 + self._signals[0])
        loading.result()
        return web

    async def _serve(self, engine: AsyncLLMEngine, web: "WebServer") -> None:
        web.attach(engine)
        self._web = web
        serving = asyncio.ensure_future(web.serve(self._listener))
        while not web.started and not serving.done():
            await asyncio.sleep(0)
        if not serving.done():
            names = ", ".join(engine.config.model.served_model_names)
            seconds = time.monotonic() - self._began
            logger.info("Ready on %s in %.1f s: %s", address(self._args.server, self._listener), seconds, names)
        await asyncio.wait({serving, self._signalled, self._died}, return_when=asyncio.FIRST_COMPLETED)
        if self._died.done():
            await asyncio.sleep(DEATH_GRACE)
        elif not serving.done():
            await self._drain(web)
        web.stop(force=self._died.done())
        try:
            await serving
        except OSError as exc:  # another process took the port while the model was loading
            raise _bind_error(exc, self._args.server) from exc
        if self._died.done():
            raise engine.dead_error or EngineDeadError("The engine died.")

    async def _drain(self, web: "WebServer") -> None:
        timeout = self._args.server.shutdown_timeout
        await web.drain()
        if web.num_running:
            logger.info("Stopping when %d running requests are done, in %g s at most.", web.num_running, timeout)
        deadline = time.monotonic() + timeout
        while web.num_running and time.monotonic() < deadline and len(self._signals) < 2 and not self._died.done():
            await asyncio.sleep(POLL)
        if web.num_running:
            logger.warning("Ended %d running requests.", web.num_running)
            await web.end_requests()


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
