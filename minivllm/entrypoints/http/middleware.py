"""Pure ASGI middleware around all routes; `middleware()` is the ordered list, outermost first."""

import hashlib
import hmac
import uuid
from typing import Any

import msgspec
from fastapi import HTTPException
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minivllm.config.sections.server import ServerConfig
from minivllm.entrypoints.http.dependencies import header_request_id
from minivllm.entrypoints.http.errors import send_error
from minivllm.errors import AuthenticationError, MinivllmError, OverloadedError

# Probes of load balancers carry no key.
OPEN_PATHS = ("/health", "/health/live", "/health/ready", "/ping")
# Where a client could see or end what others run.
ADMIN_PATHS = ("/v1/requests/",)
# What still answers while the server drains.
DRAIN_PATHS = (*OPEN_PATHS, "/metrics", "/version")
RESPONSES_PATH = "/v1/responses"
# What one process keeps for all, if there are several.
KEPT_PATHS = (RESPONSES_PATH, "/v1/files", "/v1/batches")


def middleware(server: ServerConfig) -> list[Middleware]:
    chain: list[Middleware] = []
    if server.enable_request_id_headers:
        chain.append(Middleware(RequestIdMiddleware))
    if server.allowed_origins:
        chain.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(server.allowed_origins),
                allow_credentials=server.allow_credentials,
                allow_methods=list(server.allowed_methods),
                allow_headers=list(server.allowed_headers),
            )
        )
    if server.api_key or server.admin_api_key:
        chain.append(Middleware(AuthMiddleware, keys=server.api_key, admin_keys=server.admin_api_key))
    chain.append(Middleware(DrainMiddleware))
    chain.append(Middleware(BodyLimitMiddleware, limit=server.max_request_bytes))
    if server.api_server_count > 1:
        chain.append(Middleware(KeeperMiddleware))
    return chain


class RequestIdMiddleware:
    """Sends X-Request-Id back, or a fresh one where there was none or an unfit one."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = scope["request_id"] = header_request_id(scope) or uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class AuthMiddleware:
    """Asks for one of the keys as bearer token, except on probes and CORS preflights. Admin keys open every route."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...], admin_keys: tuple[str, ...] = ()):
        self._app = app
        self._admin_digests = [_digest(key.encode()) for key in admin_keys]
        self._digests = [_digest(key.encode()) for key in keys] + self._admin_digests
        self._is_open = not keys  # to clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "OPTIONS" or _path(scope) in OPEN_PATHS:
            return await self._app(scope, receive, send)
        for_admins = bool(self._admin_digests) and (_path(scope) + "/").startswith(ADMIN_PATHS)
        if (self._is_open and not for_admins) or self._is_known(scope, self._admin_digests if for_admins else self._digests):
            return await self._app(scope, receive, send)
        what = "Unauthorized: this route is for admin keys." if for_admins else "Unauthorized"
        await send_error(AuthenticationError(what, param="Authorization"), scope, receive, send)

    @staticmethod
    def _is_known(scope: Scope, digests: list[bytes]) -> bool:
        headers = dict(reversed(scope["headers"]))
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            token = headers.get(b"x-api-key", b"")  # of Anthropic's clients
        digest = _digest(token.strip())
        # No early exit and digests of one length: the time taken says nothing about the keys.
        matches = [hmac.compare_digest(digest, key) for key in digests]
        return any(matches)


class DrainMiddleware:
    """While the server drains, new requests get 503 with Retry-After."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["app"].state.draining and _path(scope) not in DRAIN_PATHS:
            refusal = OverloadedError("The server is shutting down and takes no new requests.", retry_after=5)
            return await send_error(refusal, scope, receive, send)
        await self._app(scope, receive, send)


class BodyLimitMiddleware:
    """413 for a body of more than `limit` bytes, by its Content-Length or as it comes in."""

    def __init__(self, app: ASGIApp, limit: int):
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        length = next((value for name, value in scope["headers"] if name == b"content-length"), None)
        if length is not None:
            if length.isdigit() and int(length) > self._limit:
                return await send_error(self._refusal(), scope, receive, send)
            return await self._app(scope, receive, send)
        received = 0

        async def limited_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise self._refusal()
            return message

        await self._app(scope, limited_receive, send)

    def _refusal(self) -> HTTPException:
        return HTTPException(413, f"The request body is larger than {self._limit} bytes (--max-request-bytes).")


class KeeperMiddleware:
    """Of several API processes the first keeps files, batches and responses: it gets the requests for these."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        siblings = scope["app"].state.siblings if scope["type"] == "http" else None
        if siblings is None or siblings.index == 0 or not _path(scope).startswith(KEPT_PATHS):
            return await self._app(scope, receive, send)
        try:
            if (body := await _read(receive)) is None:
                return
            is_for_first = not (_path(scope).startswith(RESPONSES_PATH) and _keeps_nothing(body))
            if is_for_first:
                await siblings.forward(0, body, scope, receive, send)
        except (MinivllmError, HTTPException) as exc:
            return await send_error(exc, scope, receive, send)
        if not is_for_first:
            await self._app(scope, _again(body, receive), send)


class _Kept(msgspec.Struct):
    """What in the body of a response's request may have to do with other responses."""

    store: Any = None
    previous_response_id: Any = None
    input: Any = None


def _keeps_nothing(body: bytes) -> bool:
    try:
        given = msgspec.json.decode(body, type=_Kept)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    items = given.input if isinstance(given.input, list) else []
    by_id = any(not isinstance(item, dict) or ("role" not in item and "type" not in item) for item in items)
    by_id = by_id or any(item.get("type") == "item_reference" for item in items)
    return given.store is False and given.previous_response_id is None and not by_id


async def _read(receive: Receive) -> bytes | None:
    """The whole body; None if the client has gone before its end."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """As `receive` was before the body had been read."""
    told = False

    async def tell() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return tell


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
