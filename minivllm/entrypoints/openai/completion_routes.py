"""`POST /v1/completions`."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.http.dependencies import STREAM, JSONRoute, app_state, generates
from minivllm.entrypoints.openai.completion_schema import Completion, CompletionRequest
from minivllm.entrypoints.openai.shared_schema import ERRORS

router = APIRouter(tags=["OpenAI"], route_class=JSONRoute, dependencies=[generates("Completions API")])


@router.post("/v1/completions", responses={200: {"model": Completion, **STREAM}, **ERRORS})
async def create_completion(body: CompletionRequest, raw_request: Request) -> Response:
    """Continue one or several prompts; with `stream`, as server-sent events."""
    return await app_state(raw_request).openai_serving_completion.create_completion(body, raw_request)
