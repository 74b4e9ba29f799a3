"""`POST /infill`."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.http.dependencies import STREAM, JSONRoute, app_state, generates
from minivllm.entrypoints.llamacpp.schema import Infilled, InfillRequest
from minivllm.entrypoints.openai.reply import naming_ignored
from minivllm.entrypoints.openai.sampling_codec import is_known
from minivllm.entrypoints.openai.shared_schema import ERRORS

router = APIRouter(tags=["llama.cpp"], route_class=JSONRoute, dependencies=[generates("Infill API")])


@router.post("/infill", responses={200: {"model": Infilled, **STREAM}, **ERRORS})
async def infill(body: InfillRequest, raw_request: Request) -> Response:
    """Fill the gap between two texts, on models that have learnt it; with `stream`, as server-sent events."""
    return naming_ignored(await app_state(raw_request).serving_infill.infill(body, raw_request), body, is_known)
