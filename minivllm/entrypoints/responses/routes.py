"""`POST /v1/responses`, and what can be done with a stored one."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.http.dependencies import STREAM, JSONRoute, app_state, generates
from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.entrypoints.openai.reply import naming_ignored
from minivllm.entrypoints.openai.shared_schema import ERRORS, Rendered
from minivllm.entrypoints.responses.schema import Deleted, InputTokens, ItemList, ResponseObject, ResponsesRequest
from minivllm.entrypoints.responses.serving import OpenAIServingResponses

router = APIRouter(tags=["Responses"], route_class=JSONRoute, dependencies=[generates("Responses API")])


def _serving(raw_request: Request) -> OpenAIServingResponses:
    return app_state(raw_request).openai_serving_responses


@router.post("/v1/responses", responses={200: {"model": ResponseObject, **STREAM}, **ERRORS})
async def create_response(body: ResponsesRequest, raw_request: Request) -> Response:
    """Answer an input; with `stream`, as server-sent events; with `background`, later."""
    return naming_ignored(await _serving(raw_request).create_response(body, raw_request), body, sampling.is_known)


@router.post("/v1/responses/render", responses={200: {"model": Rendered}, **ERRORS})
async def render_response(body: ResponsesRequest, raw_request: Request) -> Response:
    """The prompt and the sampling parameters that such a request would have. Nothing is generated."""
    return naming_ignored(await _serving(raw_request).render(body, raw_request), body, sampling.is_known)


@router.post("/v1/responses/input_tokens", responses=ERRORS)
async def count_input_tokens(body: ResponsesRequest, raw_request: Request) -> InputTokens:
    """How many tokens this input is, with the chat template and the tools."""
    return await _serving(raw_request).count_tokens(body)


@router.get("/v1/responses/{response_id}", responses={200: {"model": ResponseObject, **STREAM}, **ERRORS})
async def retrieve_response(
    response_id: str,
    raw_request: Request,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """A stored response as it stands; with `stream`, its events, also those to come."""
    return _serving(raw_request).retrieve(response_id, stream, starting_after)


@router.delete("/v1/responses/{response_id}", responses=ERRORS)
async def delete_response(response_id: str, raw_request: Request) -> Deleted:
    """Forget a response."""
    return await _serving(raw_request).delete(response_id)


@router.post("/v1/responses/{response_id}/cancel", responses={200: {"model": ResponseObject}, **ERRORS})
async def cancel_response(response_id: str, raw_request: Request) -> Response:
    """End a response that runs in the background."""
    return await _serving(raw_request).cancel(response_id)


@router.get("/v1/responses/{response_id}/input_items", responses=ERRORS)
async def list_input_items(
    response_id: str,
    raw_request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> ItemList:
    """What a stored response answers."""
    return _serving(raw_request).input_items(response_id, limit, order, after)
