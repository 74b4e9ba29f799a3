"""Probes: `/health` and `/ping` (the engine works), `/health/live` (restart me if not), `/health/ready` (send requests)."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.http.dependencies import app_state
from minivllm.entrypoints.openai.shared_schema import ERRORS
from minivllm.errors import OverloadedError

router = APIRouter(tags=["Probes"])


@router.get("/health", response_class=Response, responses=ERRORS)
@router.get("/health/live", response_class=Response, responses=ERRORS)
@router.get("/ping", response_class=Response, responses=ERRORS)
@router.post("/ping", response_class=Response, responses=ERRORS)
async def health(raw_request: Request) -> Response:
    """200 with an empty body while the engine works, else 503."""
    await app_state(raw_request).engine.check_health()
    return Response()


@router.get("/health/ready", response_class=Response, responses=ERRORS)
async def ready(raw_request: Request) -> Response:
    """200 while new requests are taken: not while the server shuts down."""
    state = app_state(raw_request)
    await state.engine.check_health()
    if state.draining:
        raise OverloadedError("The server is shutting down.", retry_after=5)
    return Response()
