"""`POST /v1/completions`, and what it would give to the engine."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.http.dependencies import STREAM, JSONRoute, app_state, generates
from minivllm.entrypoints.openai.completion_schema import Completion, CompletionRequest
from minivllm.entrypoints.openai.reply import naming_ignored
from minivllm.entrypoints.openai.sampling_codec import is_known
from minivllm.entrypoints.openai.shared_schema import ERRORS, Rendered

router = APIRouter(tags=["OpenAI"], route_class=JSONRoute, dependencies=[generates("Completions API")])


@router.post("/v1/completions", responses={200: {"model": Completion, **STREAM}, **ERRORS})
async def create_completion(body: CompletionRequest, raw_request: Request) -> Response:
    """Continue one or several prompts; with `suffix`, up to a text that follows; with `stream`, as server-sent events."""
    serving = app_state(raw_request).openai_serving_completion
    return naming_ignored(await serving.create_completion(body, raw_request), body, is_known)


@router.post("/v1/completions/render", responses={200: {"model": list[Rendered]}, **ERRORS})
async def render_completion(body: CompletionRequest, raw_request: Request) -> Response:
    """The tokens of each prompt and the sampling parameters that such a request would have. Nothing is generated."""
    serving = app_state(raw_request).openai_serving_completion
    return naming_ignored(await serving.render_completion(body, raw_request), body, is_known)
