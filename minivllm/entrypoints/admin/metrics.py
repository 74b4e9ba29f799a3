"""`GET /metrics`: Prometheus text."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.http.dependencies import app_state

router = APIRouter(tags=["Server"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics(raw_request: Request) -> Response:
    text = app_state(raw_request).engine.metrics.render()
    return Response(text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
