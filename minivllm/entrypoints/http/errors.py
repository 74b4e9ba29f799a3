"""The only place where an exception becomes a status and a body; used by routes, middleware and event streams."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send
from typing_extensions import TypedDict

from minivllm.errors import AuthenticationError, DeadlineError, EngineDeadError, MinivllmError, NotFoundError, OverloadedError
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

MAX_MESSAGE = 2000  # characters; what a client sent is never echoed at length
MAX_INPUT = 100  # characters of an offending value
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
CLIENT_CLOSED = 499  # nobody reads this reply; the access log shows why

# Logged where they arise, or no fault of the server.
_NOT_OURS = (OverloadedError, EngineDeadError, DeadlineError)
_STATUS_TYPES = {
    401: AuthenticationError.type,
    404: NotFoundError.type,
    405: "MethodNotAllowedError",
    413: "PayloadTooLargeError",
    415: "UnsupportedMediaTypeError",
    503: OverloadedError.type,
}
# What clients of Anthropic's API know.
ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicErrorBody(TypedDict):
    type: str
    error: dict[str, Any]


ANTHROPIC_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": AnthropicErrorBody}, "5XX": {"model": AnthropicErrorBody}}
_INTERNAL = "The server failed on this request; its log has the details."
# Names of union members that pydantic puts into an error's location; they are no fields.
_UNION_TAG = re.compile(r"^(str|int|float|bool|dict|list|none|function-.*|.*\[.*)$")


class ClientDisconnected(Exception):
    """The client hung up before its reply was complete."""


def install_error_handlers(app: FastAPI) -> None:
    for kind in (MinivllmError, HTTPException, RequestValidationError, ClientDisconnected, Exception):
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, exc: Exception) -> Response:
    if isinstance(exc, HTTPException) and exc.status_code in (404, 405) and exc.detail in ("Not Found", "Method Not Allowed"):
        exc.detail = f"There is no {request.method} {request.url.path[:MAX_INPUT]} here."
        if exc.status_code == 405:  # starlette names the methods of one route only
            exc.headers = {"Allow": ", ".join(_methods(request))}
    if isinstance(exc, MinivllmError):  # an unexpected exception goes on to the web server, which logs it
        report(exc)
    return error_response(exc, request.scope)


def _methods(request: Request) -> list[str]:
    """That the path of `request` has."""
    scope, found = request.scope, set()
    for method in METHODS:
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in request.app.routes):
            found.add(method)
    return sorted(found)


def error_response(exc: BaseException, scope: Scope) -> Response:
    status, error = describe(exc)
    headers = dict(getattr(exc, "headers", None) or {})
    if isinstance(exc, OverloadedError):
        headers["Retry-After"] = str(max(1, round(exc.retry_after)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    body = _anthropic(error) if path.startswith(ANTHROPIC_PATH) else {"error": error}
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


async def send_error(exc: BaseException, scope: Scope, receive: Receive, send: Send) -> None:
    """For middleware, which stands outside the app's exception handlers."""
    await error_response(exc, scope)(scope, receive, send)


def error_event(exc: BaseException) -> bytes:
    """An error after the first byte of a stream, as an event; logged if it is ours to mend."""
    report(exc)
    return b"data: " + msgspec.json.encode({"error": describe(exc)[1]}) + b"\n\n"


def anthropic_error_event(exc: BaseException) -> bytes:
    """The same in a stream of `/v1/messages`."""
    report(exc)
    return b"event: error\ndata: " + msgspec.json.encode(_anthropic(describe(exc)[1])) + b"\n\n"


def _anthropic(error: dict[str, Any]) -> dict[str, Any]:
    """Anthropic's envelope, with what ours says more."""
    return {"type": "error", "error": error | {"type": _ANTHROPIC_TYPES.get(error["code"], "api_error")}}


def describe(exc: BaseException) -> tuple[int, dict[str, Any]]:
    """Status and error object of any exception."""
    param: str | None = None
    if isinstance(exc, MinivllmError):
        status, kind, message, param = exc.status, exc.type, exc.message, exc.param
    elif isinstance(exc, RequestValidationError):
        status, kind = 400, "BadRequestError"
        message, param = _validation_message(exc.errors())
    elif isinstance(exc, HTTPException):
        status, message = exc.status_code, str(exc.detail)
        kind = _STATUS_TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
        param = "body" if status in (400, 413) else "Content-Type" if status == 415 else None
    elif isinstance(exc, ClientDisconnected):
        status, kind, message = CLIENT_CLOSED, "ClientDisconnected", "The client closed the connection."
    else:
        status, kind, message = 500, "InternalServerError", _INTERNAL
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + " …"
    return status, {"message": message, "type": kind, "param": param, "code": status}


def report(exc: BaseException) -> None:
    """Log what is ours to mend."""
    if not isinstance(exc, MinivllmError):
        logger.error("Unexpected error in a request", exc_info=exc)
    elif exc.status >= 500 and not isinstance(exc, _NOT_OURS):
        logger.error("A request failed: %s", exc.message)


def _validation_message(errors: Sequence[Any]) -> tuple[str, str | None]:
    """The first of pydantic's errors in one sentence, and the field it is about."""
    first = errors[0]
    param = _field_name(first["loc"])
    what = first["msg"].removeprefix("Value error, ").removesuffix(" to extract fields from")
    if first["type"] == "missing":
        what = "this field is required" if param else "the request body is missing"
    elif first["type"] != "value_error" and not isinstance(first.get("input"), (dict, list, bytes)):
        what += f" ({_short(first['input'])})" if ", got " in what else f", got {_short(first['input'])}"
    # Members of one union fail together: they are one error to the reader.
    others = {_field_name(error["loc"]) for error in errors[1:]} - {param}
    more = f" ({len(others)} more fields are wrong.)" if len(others) > 1 else " (1 more field is wrong.)" if others else ""
    return f"{param or 'body'}: {what}.{more}", param or "body"


def _field_name(location: Sequence[Any]) -> str | None:
    name = ""
    for part in location[1:]:
        if isinstance(part, int):
            name += f"[{part}]"
        elif not _UNION_TAG.match(part):
            name += f".{part[:MAX_INPUT]}" if name else part[:MAX_INPUT]
    return name or None


def _short(value: object) -> str:
    text = repr(value[: MAX_INPUT + 1] if isinstance(value, str) else value)
    return text if len(text) <= MAX_INPUT else text[:MAX_INPUT] + "…"
