"""`POST /v1/messages` and `/v1/messages/count_tokens`."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.anthropic.schema import CountReply, CountRequest, MessagesReply, MessagesRequest
from minivllm.entrypoints.http.dependencies import STREAM, JSONRoute, app_state, generates
from minivllm.entrypoints.http.errors import ANTHROPIC_ERRORS
from minivllm.entrypoints.openai.reply import naming_ignored

router = APIRouter(tags=["Anthropic"], route_class=JSONRoute, dependencies=[generates("Messages API")])


@router.post("/v1/messages", responses={200: {"model": MessagesReply, **STREAM}, **ANTHROPIC_ERRORS})
async def create_message(body: MessagesRequest, raw_request: Request) -> Response:
    """Answer a conversation; with `stream`, as server-sent events."""
    serving = app_state(raw_request).anthropic_serving_messages
    return naming_ignored(await serving.create_message(body, raw_request), body)


@router.post("/v1/messages/count_tokens", responses=ANTHROPIC_ERRORS)
async def count_tokens(body: CountRequest, raw_request: Request) -> CountReply:
    """How many tokens these messages are, with the chat template and the tools."""
    return await app_state(raw_request).anthropic_serving_messages.count_tokens(body)
