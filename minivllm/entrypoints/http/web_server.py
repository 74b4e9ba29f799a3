"""`WebServer`: the app in uvicorn, stopped by `lifecycle` instead of by uvicorn's own signal handling."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn

from minivllm.config.engine_config import EngineConfig
from minivllm.config.sections.server import ServerConfig
from minivllm.entrypoints.http.app import build_app, init_app_state, start_batches
from minivllm.errors import ConfigError
from minivllm.utils.logging import get_logger

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine
    from minivllm.entrypoints.http.siblings import Siblings

CLOSE_TIMEOUT = 2  # seconds for connections to close once nothing runs on them


class WebServer:
    """`ConfigError` for certificate files that do not work."""

    def __init__(self, server: ServerConfig, config: EngineConfig, siblings: "Siblings | None" = None):
        self._config = server
        self._app = build_app(server)
        self._siblings = siblings
        access_log = not config.observability.disable_log_requests
        self._server = _Server(_uvicorn_config(self._app, server, access_log))

    async def attach(self, engine: "AsyncLLMEngine") -> None:
        init_app_state(engine, self._app.state, self._config)  # type: ignore[arg-type]
        if self._siblings is not None:
            self._app.state.siblings = self._siblings
            await self._siblings.open(self._app)
        if self._siblings is None or self._siblings.index == 0:
            start_batches(engine, self._app.state, self._config)  # type: ignore[arg-type]

    async def serve(self, listener: socket.socket) -> None:
        await self._server.serve(sockets=[listener])

    @property
    def started(self) -> bool:
        return self._server.started

    @property
    def num_running(self) -> int:
        """Requests whose reply is not complete."""
        return len(self._tasks())

    async def drain(self) -> None:
        """Refuse new requests from now on; not ready any more. Batches stop where they are, responses in the background end."""
        self._app.state.draining = True
        await self._app.state.openai_serving_responses.stop()
        if self._app.state.batch_runner is not None:
            await self._app.state.batch_runner.stop()

    async def end_requests(self) -> None:
        """Open streams end with an error event, other requests with 503."""
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT)

    def stop(self, force: bool) -> None:
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or force

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._server.server_state.tasks, *(self._siblings.tasks if self._siblings else ())]


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(app: object, server: ServerConfig, access_log: bool) -> uvicorn.Config:
    _share_handlers()
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=server.uvicorn_log_level,
        access_log=access_log,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_TIMEOUT,
        ssl_keyfile=server.ssl_keyfile,
        ssl_certfile=server.ssl_certfile,
        ssl_ca_certs=server.ssl_ca_certs,
        ssl_cert_reqs=server.ssl_cert_reqs,
    )
    try:
        config.load()
    except (ssl.SSLError, OSError) as exc:
        files = ", ".join(str(name) for name in (server.ssl_certfile, server.ssl_keyfile, server.ssl_ca_certs) if name)
        raise ConfigError(f"Cannot use the TLS files {files}: {exc.strerror or exc}.", param="ssl_certfile") from exc
    if server.uvicorn_log_level == "info":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # its start and stop lines repeat ours
    return config


def _share_handlers() -> None:
    """uvicorn's loggers write as ours do."""
    ours = get_logger("minivllm")
    logger = logging.getLogger("uvicorn")
    logger.handlers = list(ours.handlers)
    logger.propagate = False
