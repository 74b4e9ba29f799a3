"""`POST /v1/chat/completions`."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.http.dependencies import STREAM, JSONRoute, app_state, generates
from minivllm.entrypoints.openai.chat_schema import ChatCompletion, ChatCompletionRequest
from minivllm.entrypoints.openai.shared_schema import ERRORS

router = APIRouter(tags=["OpenAI"], route_class=JSONRoute, dependencies=[generates("Chat Completions API")])


@router.post("/v1/chat/completions", responses={200: {"model": ChatCompletion, **STREAM}, **ERRORS})
async def create_chat_completion(body: ChatCompletionRequest, raw_request: Request) -> Response:
    """Answer a conversation; with `stream`, as server-sent events."""
    return await app_state(raw_request).openai_serving_chat.create_chat_completion(body, raw_request)
