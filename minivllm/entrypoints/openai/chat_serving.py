"""`OpenAIServingChat`: serves `/v1/chat/completions` with the engine. Made by `http.app.init_app_state`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.chat.collect import fold
from minivllm.entrypoints.chat.session import ChatSession, ChatSessions
from minivllm.entrypoints.http.dependencies import new_request_id
from minivllm.entrypoints.http.sse import EventStream, until_disconnect
from minivllm.entrypoints.openai import chat_codec
from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.entrypoints.openai.chat_schema import ChatCompletionRequest
from minivllm.entrypoints.openai.logprobs_codec import LogprobsCodec
from minivllm.entrypoints.openai.reply import ReplyHead, json_response, rendered
from minivllm.entrypoints.openai.shared_schema import StreamOptions

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine


class OpenAIServingChat:
    def __init__(self, engine: "AsyncLLMEngine", sessions: ChatSessions, fingerprint: str, response_role: str):
        self._engine = engine
        self._sessions = sessions
        self._fingerprint = fingerprint
        self._role = response_role

    async def create_chat_completion(self, body: ChatCompletionRequest, raw_request: Request) -> Response:
        """Whole or streamed reply. Refusals are raised, before the first byte of a stream too."""
        config = self._engine.config
        model = sampling.check_model(body.model, config.model.served_model_names)
        options = sampling.check_stream_options(body)
        request_id = new_request_id("chatcmpl", body.request_id, raw_request)
        request = chat_codec.decode(body, config.generation.defaults, config.model.max_logprobs)
        session = await self._sessions.open(request, request_id)
        encoder = chat_codec.ChatEncoder(
            ReplyHead(request_id, model, self._fingerprint),
            session,
            LogprobsCodec(self._engine.tokenizer, request.sampling_params.logprobs or 0, bool(body.return_tokens_as_token_ids)),
            request.messages[-1]["role"] if request.continue_final_message else self._role,
            with_token_ids=bool(body.return_token_ids),
            with_functions=body.functions is not None,
        )
        if body.stream:
            return EventStream(_stream(session, encoder, options))
        answers = await until_disconnect(raw_request.receive, fold(session.events()))
        return json_response(encoder.whole(answers))

    async def render_chat_completion(self, body: ChatCompletionRequest, raw_request: Request) -> Response:
        """What `create_chat_completion` would give to the engine."""
        config = self._engine.config
        model = sampling.check_model(body.model, config.model.served_model_names)
        sampling.check_stream_options(body)
        request_id = new_request_id("chatcmpl", body.request_id, raw_request)
        request = chat_codec.decode(body, config.generation.defaults, config.model.max_logprobs)
        prompt = await self._sessions.render(request)
        return json_response(rendered(request_id, model, body, prompt, request.sampling_params))


async def _stream(session: ChatSession, encoder: chat_codec.ChatEncoder, options: StreamOptions) -> AsyncGenerator[bytes, None]:
    stream = encoder.stream(options)
    async with aclosing(session.events()) as events:
        async for event in events:
            if chunk := stream.encode(event):
                yield chunk
    if chunk := stream.last():
        yield chunk
