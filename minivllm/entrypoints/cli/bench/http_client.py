"""An HTTP/1.1 client for load: asyncio, kept-alive connections, streamed answers, little work a chunk. Used by `load`."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

from minivllm.errors import ConfigError, ServerError

_READ_LIMIT = 1 << 20  # bytes; no line of a head or of chunk framing is longer


class HttpClient:
    """Asks one server. A connection goes back to the idle ones when its answer was read to the end."""

    def __init__(self, base_url: str, headers: dict[str, str]):
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"--base-url must begin with http:// or https://, got {base_url!r}.", param="base_url")
        self._tls = url.scheme == "https"
        self._host, self._port = url.hostname, url.port or (443 if self._tls else 80)
        self._path = url.path.rstrip("/")
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in {"Host": url.netloc, **headers}.items())
        self._idle: list[_Connection] = []

    async def get(self, path: str) -> Any:
        """The JSON of an answer with status 200."""
        return json.loads(b"".join([piece async for piece in self.stream("GET", path)]))

    async def stream(self, method: str, path: str, body: bytes = b"") -> AsyncGenerator[bytes, None]:
        """Pieces of the answer's body as they come. ServerError with the server's reason if the status is not 200."""
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        connection = await self._ask(head.encode() + b"\r\n" + body)
        try:
            if connection.status == 200:
                async for piece in connection.body():
                    yield piece
            else:
                text = b"".join([piece async for piece in connection.body()])
                raise ServerError(f"HTTP {connection.status}: {_reason(text)}")
        except (asyncio.IncompleteReadError, ConnectionError) as e:
            raise ServerError("the connection broke in the midst of an answer") from e
        finally:
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _ask(self, request: bytes) -> "_Connection":
        """A connection with the head of the answer read. An idle one that the server has closed meanwhile is replaced."""
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.send(request)
            except (asyncio.IncompleteReadError, ConnectionError):
                connection.close()
                continue
            return connection
        tls = self._tls or None
        connection = _Connection(*await asyncio.open_connection(self._host, self._port, ssl=tls, limit=_READ_LIMIT))
        try:
            await connection.send(request)
        except (asyncio.IncompleteReadError, ConnectionError) as e:
            connection.close()
            raise ServerError("the server closed the connection without an answer") from e
        except BaseException:
            connection.close()
            raise
        return connection


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.status = 0
        self.is_reusable = False
        self._reader, self._writer = reader, writer
        self._headers: dict[str, str] = {}

    async def send(self, request: bytes) -> None:
        """Send a request and read the head of its answer."""
        self.is_reusable = False
        self._writer.write(request)
        await self._writer.drain()
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        self._headers = {name.lower(): value.strip().lower() for name, _, value in (line.partition(":") for line in lines[1:])}

    async def body(self) -> AsyncGenerator[bytes, None]:
        if self._headers.get("transfer-encoding") == "chunked":
            while size := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            while await self._reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
        elif "content-length" in self._headers:
            yield await self._reader.readexactly(int(self._headers["content-length"]))
        else:
            while piece := await self._reader.read(_READ_LIMIT):
                yield piece
            return
        self.is_reusable = self._headers.get("connection") != "close"

    def close(self) -> None:
        self._writer.close()


def _reason(text: bytes) -> str:
    try:
        error = json.loads(text)
        return str((error.get("error") or error)["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return text[:200].decode(errors="replace")
