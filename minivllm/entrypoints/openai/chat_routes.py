"""`POST /v1/chat/completions`, and what it would give to the engine."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.http.dependencies import STREAM, JSONRoute, app_state, generates
from minivllm.entrypoints.openai.chat_schema import ChatCompletion, ChatCompletionRequest
from minivllm.entrypoints.openai.reply import naming_ignored
from minivllm.entrypoints.openai.sampling_codec import is_known
from minivllm.entrypoints.openai.shared_schema import ERRORS, Rendered

router = APIRouter(tags=["OpenAI"], route_class=JSONRoute, dependencies=[generates("Chat Completions API")])


@router.post("/v1/chat/completions", responses={200: {"model": ChatCompletion, **STREAM}, **ERRORS})
async def create_chat_completion(body: ChatCompletionRequest, raw_request: Request) -> Response:
    """Answer a conversation; with `stream`, as server-sent events."""
    serving = app_state(raw_request).openai_serving_chat
    return naming_ignored(await serving.create_chat_completion(body, raw_request), body, is_known)


@router.post("/v1/chat/completions/render", responses={200: {"model": Rendered}, **ERRORS})
async def render_chat_completion(body: ChatCompletionRequest, raw_request: Request) -> Response:
    """The prompt and the sampling parameters that such a request would have. Nothing is generated."""
    serving = app_state(raw_request).openai_serving_chat
    return naming_ignored(await serving.render_chat_completion(body, raw_request), body, is_known)
