"""`AnthropicServingMessages`: serves `/v1/messages` with the engine. Made by `http.app.init_app_state`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.anthropic import codec
from minivllm.entrypoints.anthropic.schema import CountReply, CountRequest, MessagesRequest
from minivllm.entrypoints.chat.collect import fold
from minivllm.entrypoints.chat.prompt import ChatPrompts
from minivllm.entrypoints.chat.session import ChatSession, ChatSessions
from minivllm.entrypoints.http.dependencies import new_request_id
from minivllm.entrypoints.http.errors import anthropic_error_event
from minivllm.entrypoints.http.sse import EventStream, until_disconnect
from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.entrypoints.openai.reply import json_response

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


class AnthropicServingMessages:
    def __init__(self, engine: "AsyncLLMEngine", prompts: ChatPrompts, sessions: ChatSessions):
        self._engine = engine
        self._prompts = prompts
        self._sessions = sessions

    async def create_message(self, body: MessagesRequest, raw_request: Request) -> Response:
        """Whole or streamed reply. Refusals are raised, before the first byte of a stream too."""
        config = self._engine.config
        model = sampling.check_model(body.model, config.model.served_model_names)
        request_id = new_request_id("msg", None, raw_request)
        session = await self._sessions.open(codec.decode(body, config.generation.defaults), request_id)
        if body.stream:
            events = _stream(session, codec.StreamEncoder(request_id, model, session))
            return EventStream(events, end=b"", comment=PING, error_event=anthropic_error_event)
        (answer,) = await until_disconnect(raw_request.receive, fold(session.events()))
        return json_response(codec.whole(request_id, model, session, answer))

    async def count_tokens(self, body: CountRequest) -> CountReply:
        """The size of the prompt that a request would have."""
        sampling.check_model(body.model, self._engine.config.model.served_model_names)
        prompt = await self._prompts.render(codec.decode_prompt(body))
        return {"input_tokens": len(prompt["prompt_token_ids"])}


async def _stream(session: ChatSession, encoder: codec.StreamEncoder) -> AsyncGenerator[bytes, None]:
    async with aclosing(session.events()) as events:
        async for event in events:
            if chunk := encoder.encode(event):
                yield chunk
