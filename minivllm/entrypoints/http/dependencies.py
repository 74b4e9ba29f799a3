"""What routes need from a request: the strict JSON body, the typed app state, the ids."""

import re
import uuid
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import Depends, HTTPException
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from minivllm.config.sections.pooling import PoolingConfig
from minivllm.errors import ClientError

if TYPE_CHECKING:
    from minivllm.entrypoints.http.app import AppState

# For the `responses` of a route that may stream.
STREAM: dict[str, Any] = {
    "content": {
        "text/event-stream": {
            "schema": {  # of one event
                "type": "object",
                "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON, or [DONE]"}},
                "required": ["data"],
            }
        }
    }
}

_REQUEST_ID = re.compile(r"[\x20-\x7e]{1,128}")
_JSON_TYPE = re.compile(r"\s*application/([^;\s]*\+)?json\s*(;|$)", re.IGNORECASE)


def app_state(request: Request) -> "AppState":
    """The `http.app.AppState` of the app that serves `request`."""
    state: AppState = request.app.state
    return state


def needs(what: str, test: Callable[[PoolingConfig | None], bool]) -> Any:
    """For the `dependencies` of a route or router: refuses requests when the model cannot serve `what`.

    `test` gets the model's `EngineConfig.pooling`: None for one that generates.
    """

    async def check(request: Request) -> None:
        if not test(app_state(request).engine.config.pooling):
            raise ClientError(f"The model does not support {what}", param="model")

    return Depends(check)


def generates(what: str) -> Any:
    """As `needs`, for a route that generates text."""
    return needs(what, lambda pooling: pooling is None)


class JSONRoute(APIRoute):
    """A route whose body must be JSON by content type and by RFC 8259: no NaN, no half surrogate pairs."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        has_body = self.body_field is not None

        async def handle(request: Request) -> Response:
            if has_body:
                # A page of a foreign site can send a form or plain text without asking (CORS); it cannot send this.
                given = request.headers.get("content-type", "")
                if not _JSON_TYPE.match(given):
                    raise HTTPException(415, f"Content-Type must be application/json, not {given[:100]!r}.")
                request = _StrictRequest(request.scope, request.receive)
            return await handler(request)

        return handle


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return msgspec.json.decode(await self.body())
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
            raise HTTPException(400, f"The request body is not valid JSON: {exc}") from exc


def header_request_id(scope: Scope) -> str | None:
    """The client's X-Request-Id, if it is fit to be logged and sent back."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            return text if _REQUEST_ID.fullmatch(text) else None
    return None


def new_request_id(prefix: str, given: str | None, request: Request) -> str:
    """From the body, the header, or fresh; clients may use one id twice at a time."""
    if given is not None and not _REQUEST_ID.fullmatch(given):
        raise ClientError("request_id must be 1 to 128 printable ASCII characters.", param="request_id")
    named = given or request.scope.get("request_id") or header_request_id(request.scope) or uuid.uuid4().hex
    return f"{prefix}-{named}"
