"""`OpenAIServingResponses`: serves `/v1/responses` with the engine. Made by `http.app.init_app_state`."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from operator import itemgetter
from typing import TYPE_CHECKING, cast

from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.chat.request import ChatRequest
from minivllm.entrypoints.chat.session import ChatSession, ChatSessions
from minivllm.entrypoints.http.dependencies import new_request_id
from minivllm.entrypoints.http.errors import report
from minivllm.entrypoints.http.paging import page
from minivllm.entrypoints.http.sse import EventStream, until_disconnect
from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.entrypoints.openai.logprobs_codec import LogprobsCodec
from minivllm.entrypoints.openai.reply import json_response, rendered
from minivllm.entrypoints.responses import codec
from minivllm.entrypoints.responses.encoder import ResponseEncoder
from minivllm.entrypoints.responses.items import check_outputs, read_input
from minivllm.entrypoints.responses.schema import Deleted, InputTokens, Item, ItemList, ResponsesRequest
from minivllm.entrypoints.responses.store import ResponseStore, StoredResponse
from minivllm.errors import ClientError
from minivllm.messages.prompt import TokensPrompt

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine


class OpenAIServingResponses:
    """`store` has what clients may ask for again."""

    def __init__(self, engine: "AsyncLLMEngine", sessions: ChatSessions, store: ResponseStore):
        self.store = store
        self._engine = engine
        self._sessions = sessions
        self._tasks: set[asyncio.Task[None]] = set()  # responses that run in the background

    async def create_response(self, body: ResponsesRequest, raw_request: Request) -> Response:
        """Whole or streamed reply. Refusals are raised, before the first byte of a stream too."""
        model = self._check(body)
        response_id = f"resp_{uuid.uuid4().hex}"  # a secret: who knows it may read the response
        request_id = new_request_id(response_id, body.request_id, raw_request)
        history, given, new_ids = self._read(body)
        request = self._decode(body, history + given)
        try:
            await self._fit(request, body)
            session = await self._sessions.open(request, request_id)
        except ClientError as exc:
            raise codec.renamed(exc) from None
        params = request.sampling_params
        encoder = ResponseEncoder(
            codec.head(response_id, model, body, params),
            session,
            logprobs=self._logprobs(params.logprobs, bool(body.return_tokens_as_token_ids)),
            custom=[tool.name for tool in body.tools or () if tool.type == "custom" and tool.name],
            with_summary=codec.summary(body) is not None,
        )
        stored = None if body.store is False else StoredResponse(encoder.response, history, given, new_ids)
        if body.background:
            assert stored is not None
            self._start(session, encoder, stored)
            return self._follow(stored, -1) if body.stream else _json(stored)
        events = self._run(session, encoder, stored)
        if body.stream:
            return EventStream(events, end=b"", error_event=encoder.error_event)
        await until_disconnect(raw_request.receive, _drain(events))
        return json_response(encoder.response)

    async def render(self, body: ResponsesRequest, raw_request: Request) -> Response:
        """What `create_response` would give to the engine."""
        model = self._check(body)
        request_id = new_request_id("resp", body.request_id, raw_request)
        request, prompt = await self._prompt(body)
        return json_response(rendered(request_id, model, body, prompt, request.sampling_params))

    async def count_tokens(self, body: ResponsesRequest) -> InputTokens:
        """The size of the prompt that a request would have."""
        self._check(body)
        _, prompt = await self._prompt(body)
        return {"object": "response.input_tokens", "input_tokens": len(prompt["prompt_token_ids"])}

    def retrieve(self, response_id: str, stream: bool, starting_after: int | None) -> Response:
        """A stored response as it stands, or its events from the one behind number `starting_after` on."""
        stored = self.store.get(response_id)
        if starting_after is not None and not stream:
            raise ClientError("starting_after needs `stream`.", param="starting_after")
        return self._follow(stored, -1 if starting_after is None else starting_after) if stream else _json(stored)

    async def cancel(self, response_id: str) -> Response:
        """End a response that runs in the background; it keeps the output that it has."""
        stored = self.store.get(response_id)
        if not stored.background:
            raise ClientError("Only responses with `background` can be cancelled.", param="response_id")
        await _end(stored)
        return _json(stored)

    async def delete(self, response_id: str) -> Deleted:
        """Forget a response, and end it if it runs in the background."""
        await _end(self.store.remove(response_id))
        return {"id": response_id, "object": "response", "deleted": True}

    def input_items(self, response_id: str, limit: int, order: str, after: str | None) -> ItemList:
        """What a stored response answers, with the conversation before it; newest first, or `order` "asc"."""
        items = self.store.get(response_id).input_items()
        return cast(ItemList, page(items[::-1], after, limit, order, id_of=itemgetter("id")))

    async def stop(self) -> None:
        """End what runs in the background."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _check(self, body: ResponsesRequest) -> str:
        """The name of the model, if the request can be served at all."""
        codec.check_fields(body)
        sampling.check_stream_options(body)
        return sampling.check_model(body.model, self._engine.config.model.served_model_names)

    async def _prompt(self, body: ResponsesRequest) -> tuple[ChatRequest, TokensPrompt]:
        history, given, _ = self._read(body)
        request = self._decode(body, history + given)
        try:
            await self._fit(request, body)
            return request, await self._sessions.render(request)
        except ClientError as exc:
            raise codec.renamed(exc) from None

    def _read(self, body: ResponsesRequest) -> tuple[list[Item], list[Item], list[str]]:
        """The conversation before, the new items, and which of their ids are new."""
        history: list[Item] = []
        if body.previous_response_id is not None:
            previous = self.store.get(body.previous_response_id, "previous_response_id")
            if not previous.ended:
                raise ClientError("The previous response is still running.", param="previous_response_id")
            history = previous.conversation()
        given, new_ids = read_input(body.input, self.store.find_item)
        check_outputs(history, given)
        return history, given, new_ids

    def _decode(self, body: ResponsesRequest, items: list[Item]) -> ChatRequest:
        config = self._engine.config
        try:
            return codec.decode(body, items, config.generation.defaults, config.model.max_logprobs)
        except ClientError as exc:
            raise codec.renamed(exc) from None

    async def _fit(self, request: ChatRequest, body: ResponsesRequest) -> None:
        """With `truncation` "auto", leave out the oldest turns until the prompt and its answer fit."""
        if body.truncation != "auto":
            return
        limit = self._engine.max_model_len - (request.sampling_params.max_tokens or 1)
        every = request.messages
        start = next((i for i, message in enumerate(every) if message["role"] not in ("system", "developer")), 0)
        # Where the conversation may begin: at any turn of the user.
        starts = [start, *(i for i, message in enumerate(every) if message["role"] == "user" and i > start)]
        low, high = 0, len(starts) - 1
        middle = 0  # it mostly fits as it is
        while low < high:
            request.messages = every[:start] + every[starts[middle] :]
            if len((await self._sessions.render(request))["prompt_token_ids"]) <= limit:
                high = middle
            else:
                low = middle + 1
            middle = (low + high) // 2
        request.messages = every[:start] + every[starts[low] :]

    def _logprobs(self, num_top: int | None, as_ids: bool) -> LogprobsCodec | None:
        return None if num_top is None else LogprobsCodec(self._engine.tokenizer, num_top, as_ids)

    async def _run(
        self, session: ChatSession, encoder: ResponseEncoder, stored: StoredResponse | None
    ) -> AsyncGenerator[bytes, None]:
        """The events as they come. A request that is refused before the first one is not stored."""
        try:
            async with aclosing(session.events()) as events:
                async for event in events:
                    if stored is not None and not encoder.begun:
                        self.store.put(stored)
                    if new := encoder.encode(event):
                        if stored is not None:
                            stored.add(new)
                        yield b"".join(new)
        except Exception as exc:
            if isinstance(exc, ClientError):
                codec.renamed(exc)
            if encoder.begun and not encoder.ended:
                new = encoder.fail(exc)
                if stored is not None:
                    stored.add(new)
            raise
        finally:
            if encoder.begun:
                self._finish(encoder, stored)

    def _finish(self, encoder: ResponseEncoder, stored: StoredResponse | None) -> None:
        """Whatever ended it: a client that hung up has cancelled it."""
        new = encoder.cancel()
        if stored is not None:
            stored.add(new)
            self.store.settle(stored)

    def _start(self, session: ChatSession, encoder: ResponseEncoder, stored: StoredResponse) -> None:
        async def run() -> None:
            try:
                await _drain(self._run(session, encoder, stored))
            except Exception as exc:
                report(exc)

        self.store.put(stored)
        stored.add(encoder.queue())
        task = stored.task = asyncio.create_task(run(), name=f"minivllm-{stored.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._finish(encoder, stored))  # if it was cancelled before it began

    def _follow(self, stored: StoredResponse, after: int) -> Response:
        return EventStream(stored.follow(after), end=b"")


async def _drain(events: AsyncGenerator[bytes, None]) -> None:
    async with aclosing(events):
        async for _ in events:
            pass


async def _end(stored: StoredResponse) -> None:
    if stored.task is not None and not stored.task.done():
        stored.task.cancel()
        await asyncio.wait({stored.task})


def _json(stored: StoredResponse) -> Response:
    return Response(stored.body(), media_type="application/json")
