"""`Siblings`: how API processes of one server pass requests on to each other. There are some with `--api-server-count` only."""

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import AsyncGenerator, MutableMapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minivllm.entrypoints.http.errors import ClientDisconnected, error_event
from minivllm.entrypoints.http.sse import until_disconnect
from minivllm.errors import EngineDeadError, OverloadedError

_LENGTH_BYTES = 4
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class Siblings:
    """Each process has a Unix socket, on which it serves its app to the others: one request a connection."""

    def __init__(self, index: int, paths: Sequence[str]):
        """`index`: which of them this process is."""
        self.index = index
        self.tasks: set[asyncio.Task[None]] = set()  # that serve what others have passed on
        self._paths = paths
        self._app: ASGIApp | None = None
        self._server: asyncio.AbstractServer | None = None

    async def open(self, app: ASGIApp) -> asyncio.AbstractServer:
        self._app = app
        self._server = await asyncio.start_unix_server(self._serve, self._paths[self.index])
        return self._server

    async def forward(self, to: int, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Let another process answer; `receive` has told the whole `body`."""
        started = False

        async def relay() -> None:
            nonlocal started
            async with aclosing(self._ask(to, scope, body)) as messages:
                async for message in messages:
                    started = True
                    await send(message)

        try:
            await until_disconnect(receive, relay())
        except ClientDisconnected:
            return
        except (OverloadedError, EngineDeadError) as exc:
            if not started:
                raise
            await send({"type": "http.response.body", "body": error_event(exc)})

    async def ask_all(self, request: Request) -> list[bytes]:
        """What the others answer to the same request, if it is no refusal. Nothing if one of them has sent it."""
        if "sibling" in request.scope:
            return []
        others = [index for index in range(len(self._paths)) if index != self.index]
        body = await request.body()
        answers = await asyncio.gather(*(self._whole(index, request.scope, body) for index in others))
        return [answer for status, answer in answers if status == 200]

    async def _whole(self, to: int, scope: Scope, body: bytes) -> tuple[int, bytes]:
        messages = [message async for message in self._ask(to, scope, body)]
        return messages[0]["status"], b"".join(message.get("body", b"") for message in messages[1:])

    async def _ask(self, to: int, scope: Scope, body: bytes) -> AsyncGenerator[Message, None]:
        """The messages of another process's answer. Closing it is what a client does who hangs up."""
        names = ("method", "path", "raw_path", "query_string", "headers")
        writer = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=await _connected(self._paths[to]))
            await _write(writer, [{name: scope[name] for name in names}, body])
            more = True
            while more:
                message: Message = await _read(reader)
                more = message["type"] == "http.response.start" or message.get("more_body", False)
                yield message
        except (OSError, asyncio.IncompleteReadError) as exc:
            raise EngineDeadError(f"API process {to} does not answer.") from exc
        finally:
            if writer is not None:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None and self._app is not None
        self.tasks.add(task)
        try:
            if _is_this_user(writer):
                known, body = await _read(reader)
                await self._app(_scope(known), _receiver(reader, body), lambda message: _write(writer, message))
        except (OSError, asyncio.IncompleteReadError):
            pass  # the other one has gone
        finally:
            self.tasks.discard(task)
            writer.close()


async def _connected(path: str) -> socket.socket:
    """uvloop itself connects to files only, not to abstract sockets."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, path)
    except BaseException:
        sock.close()
        raise
    return sock


def _scope(known: dict[str, Any]) -> Scope:
    headers = [tuple(pair) for pair in known["headers"]]
    return {
        **known, "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
        "headers": headers, "server": None, "client": None, "sibling": True,
    }  # fmt: skip


def _receiver(reader: asyncio.StreamReader, body: bytes) -> Receive:
    given = iter([body])

    async def receive() -> Message:
        if (data := next(given, None)) is not None:
            return {"type": "http.request", "body": data, "more_body": False}
        with contextlib.suppress(OSError):
            await reader.read(1)  # nothing more is sent: it returns when the other end is closed
        return {"type": "http.disconnect"}

    return receive


def _is_this_user(writer: asyncio.StreamWriter) -> bool:
    """An abstract socket has no file permissions; elsewhere the socket lies in a private folder."""
    if sys.platform != "linux":
        return True
    credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user == os.getuid()


async def _write(writer: asyncio.StreamWriter, value: "list[Any] | MutableMapping[str, Any]") -> None:
    data = _encode(value)
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    await writer.drain()


async def _read(reader: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    return _decode(await reader.readexactly(size))
