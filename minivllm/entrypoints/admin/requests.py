"""What the engine is doing now: `GET /v1/requests`, one of them, and its cancellation. For admin keys where there are any."""

from dataclasses import asdict
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from typing_extensions import TypedDict

from minivllm.engine.live_requests import LiveRequest
from minivllm.entrypoints.http.dependencies import app_state
from minivllm.entrypoints.openai.shared_schema import ERRORS, MAX_ID_LENGTH
from minivllm.errors import NotFoundError

router = APIRouter(tags=["Requests"])


class Requests(TypedDict):
    object: str
    data: list[dict[str, Any]]


class Cancelled(TypedDict):
    id: str
    object: str
    deleted: bool


@router.get("/v1/requests", responses=ERRORS)
async def list_requests(raw_request: Request) -> Requests:
    """All requests that run or wait, oldest first."""
    shown = [_shown(request) for request in await app_state(raw_request).engine.live_requests()]
    for answer in await _others(raw_request):
        shown += answer["data"]
    return {"object": "list", "data": sorted(shown, key=lambda request: -request["age_ms"])}


@router.get("/v1/requests/{request_id}", responses=ERRORS)
async def get_request(request_id: str, raw_request: Request) -> dict[str, Any]:
    """One request, by the id of its answer or the X-Request-Id it came with."""
    found = [_shown(request) for request in await _find(request_id, raw_request)] or await _others(raw_request)
    if not found:
        raise _not_found(request_id)
    return found[0]


@router.delete("/v1/requests/{request_id}", responses=ERRORS)
async def cancel_request(request_id: str, raw_request: Request) -> Cancelled:
    """End a request; its client gets what there is, with finish reason "abort"."""
    found = await _find(request_id, raw_request)
    for live in found:
        await app_state(raw_request).engine.abort(live.id)
    if not await _others(raw_request) and not found:
        raise _not_found(request_id)
    return {"id": request_id, "object": "request", "deleted": True}


async def _find(request_id: str, raw_request: Request) -> list[LiveRequest]:
    live = await app_state(raw_request).engine.live_requests()
    return [request for request in live if _matches(request.id, request_id)]


async def _others(raw_request: Request) -> list[Any]:
    """What the other API processes, if there are any, answer to the same request."""
    siblings = app_state(raw_request).siblings
    return [msgspec.json.decode(body) for body in await siblings.ask_all(raw_request)] if siblings else []


def _not_found(request_id: str) -> NotFoundError:
    return NotFoundError(f"No request {request_id[:MAX_ID_LENGTH]!r} is running.", param="request_id")


def _matches(live_id: str, given: str) -> bool:
    """The prompts of a text completion are requests with a number at the end; headers lack the kind at the beginning."""
    full = {live_id, live_id.rpartition("-")[0]}
    return given in full | {name.partition("-")[2] for name in full}


def _shown(request: LiveRequest) -> dict[str, Any]:
    return {"object": "request", **asdict(request)}
