"""`WebServer`: the app in uvicorn, stopped by `lifecycle` instead of by uvicorn's own signal handling."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.config.sections.server import ServerConfig
from minivllm.entrypoints.http.app import build_app, init_app_state, start_batches
from minivllm.errors import ConfigError
from minivllm.utils.logging import get_logger

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine

CLOSE_TIMEOUT = 2  # seconds for connections to close once nothing runs on them


class WebServer:
    """`ConfigError` for certificate files that do not work."""

    def __init__(self, args: AsyncEngineArgs):
        self._args = args
        self._app = build_app(args.server)
        self._server = _Server(_uvicorn_config(self._app, args.server, access_log=not args.disable_log_requests))

    def attach(self, engine: "AsyncLLMEngine") -> None:
        init_app_state(engine, self._app.state, self._args)  # type: ignore[arg-type]
        start_batches(engine, self._app.state, self._args)  # type: ignore[arg-type]

    async def serve(self, listener: socket.socket) -> None:
        await self._server.serve(sockets=[listener])

    @property
    def started(self) -> bool:
        return self._server.started

    @property
    def num_running(self) -> int:
        """Requests whose reply is not complete."""
        return len(self._server.server_state.tasks)

    async def drain(self) -> None:
        """Refuse new requests from now on; not ready any more. Batches stop where they are, responses in the background end."""
        self._app.state.draining = True
        await self._app.state.openai_serving_responses.stop()
        if self._app.state.batch_runner is not None:
            await self._app.state.batch_runner.stop()

    async def end_requests(self) -> None:
        """Open streams end with an error event, other requests with 503."""
        tasks = list(self._server.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT)

    def stop(self, force: bool) -> None:
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or force


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
