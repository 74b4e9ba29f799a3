"""`ChatSession`: one chat request on the engine, as a stream of `ChatEvent`s. Opened by `ChatSessions` for each chat API."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from minivllm.entrypoints.chat.grammar import constrain
from minivllm.entrypoints.chat.prompt import ChatPrompts, encode
from minivllm.entrypoints.chat.request import ChatRequest
from minivllm.errors import ClientError, ServerError
from minivllm.messages.output import CompletionOutput, Logprob, RequestOutput
from minivllm.messages.prompt import TokensPrompt
from minivllm.messages.sampling_params import OutputKind, SamplingParams
from minivllm.messages.structured_outputs import StructuredOutputsParams
from minivllm.text.parsers.events import ChatEvent, Finish, ReasoningDelta, TextDelta
from minivllm.text.parsers.parser import OutputParser
from minivllm.text.parsers.registry import Dialect

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine

MakeParser = Callable[[int], OutputParser | None]  # of the choice with this index


class ChatSessions:
    """Opens the sessions of all chat APIs. `dialect`: how the model writes calls and thoughts."""

    def __init__(self, engine: "AsyncLLMEngine", prompts: ChatPrompts, dialect: Dialect, auto_tool_choice: bool = True):
        self.dialect = dialect
        self._auto_tool_choice = auto_tool_choice
        self._engine = engine
        self._prompts = prompts

    async def render(self, request: ChatRequest) -> TokensPrompt:
        """The prompt alone."""
        return await self._prompts.render(request)

    async def open(self, request: ChatRequest, request_id: str) -> "ChatSession":
        """Refusals are raised here or before the first event of the session."""
        params, use = request.sampling_params, request.tool_use
        if use is not None and not use.required and not self._auto_tool_choice:
            raise ClientError('"auto" tool choice requires --enable-auto-tool-choice to be set', param="tool_choice")
        self._engine.check_admission(params.n)
        prompt = await self._prompts.render(request)
        text = prompt.get("prompt") or ""

        def make_parser(index: int) -> OutputParser | None:
            return self.dialect.parser(
                index,
                text,
                tools=None if use is None else use.parameters,
                max_calls=None if use is None or use.parallel else 1,
                show_special=not params.skip_special_tokens,
            )

        if use is not None and not use.parallel:  # the end of its one call must be seen when it comes
            params = msgspec.structs.replace(params, output_kind=OutputKind.DELTA)
        params = msgspec.structs.replace(
            params,
            shown_special_ids=self.dialect.mark_ids(with_calls=use is not None) if params.skip_special_tokens else [],
            structured_outputs=self._constrain(request, text),
        )
        return ChatSession(
            self._engine,
            prompt,
            params,
            request_id,
            request.priority,
            request.timeout,
            make_parser,
            request.include_reasoning,
        )

    def _constrain(self, request: ChatRequest, prompt: str) -> StructuredOutputsParams | None:
        layout, use, form = self.dialect.calls.layout, request.tool_use, request.sampling_params.structured_outputs
        assert layout is not None
        # Where answers are messages with headers, the one to go on with has its header.
        if not (layout.answer and request.continue_final_message):
            form = constrain(use, layout, form)
        gate = self.dialect.gate(prompt)
        if form is None or gate is None:
            return form
        start, end = (self._token_ids(text) for text in gate)
        return msgspec.structs.replace(form, reasoning_start=start or None, reasoning_end=end)

    def _token_ids(self, mark: str) -> list[int]:
        """Of a mark within an answer, where nothing is put in front of it."""
        tokenizer = self._engine.tokenizer
        token = tokenizer.id_of(mark) if mark else None
        return tokenizer.encode(mark, add_special_tokens=False) if token is None else [token]


class ChatSession:
    """The figures below are complete when `events()` has ended; those of the prompt stand before the first event."""

    def __init__(
        self,
        engine: "AsyncLLMEngine",
        prompt: TokensPrompt,
        params: SamplingParams,
        request_id: str,
        priority: int = 0,
        timeout: float | None = None,
        make_parser: MakeParser = lambda index: None,
        include_reasoning: bool = True,
    ):
        self._enough: set[int] = set()  # choices that have all the calls they may have
        self._outputs = engine.generate(prompt, params, request_id, priority=priority, timeout=timeout, enough=self._enough)
        self._tokenizer = engine.tokenizer
        self._parsers = [make_parser(index) for index in range(params.n)]
        self._include_reasoning = include_reasoning
        self.prompt_token_ids: list[int] = prompt["prompt_token_ids"]
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self.kv_transfer_params: dict[str, Any] | None = None
        self.num_cached_tokens = 0
        self.num_completion_tokens = 0
        self.num_reasoning_tokens = 0

    async def events(self) -> AsyncGenerator[ChatEvent, None]:
        """Every choice gives deltas, then one `Finish`. Refusals are raised before the first event."""
        started = False
        async with aclosing(self._outputs) as outputs:
            async for output in outputs:
                if not started:
                    started = True
                    self._take_prompt(output)
                self.kv_transfer_params = output.kv_transfer_params
                for choice in output.outputs:
                    self.num_completion_tokens += len(choice.token_ids)
                    for event in self._deltas(choice):
                        yield event
                    if choice.finish_reason is not None:
                        if choice.finish_reason == "error":
                            raise ServerError("The model failed on this request.")
                        yield await self._finish(choice, choice.finish_reason)

    def _deltas(self, choice: CompletionOutput) -> list[ChatEvent]:
        parser = self._parsers[choice.index]
        if parser is None:
            if not choice.token_ids and not choice.text:
                return []
            return [TextDelta(choice.index, choice.text, token_ids=choice.token_ids, logprobs=choice.logprobs)]
        events = parser.feed(choice.text) if choice.text else []
        if choice.finish_reason is not None:
            events += parser.finish()
        elif parser.writer.is_full:
            self._enough.add(choice.index)
        if not self._include_reasoning:
            events = [event for event in events if not isinstance(event, ReasoningDelta)]
        if choice.token_ids:
            first = events[0] if events else TextDelta(choice.index, "")
            assert not isinstance(first, Finish)
            first.token_ids, first.logprobs = choice.token_ids, choice.logprobs
            events[:1] = [first]
        return events

    async def _finish(self, choice: CompletionOutput, reason: str) -> Finish:
        parser = self._parsers[choice.index]
        if parser is None:
            return Finish(choice.index, reason, choice.stop_reason)
        thoughts = "".join(parser.writer.reasoning_text)
        num_tokens = len(await encode(self._tokenizer, thoughts, add_special_tokens=False)) if thoughts else 0
        self.num_reasoning_tokens += num_tokens
        return Finish(choice.index, parser.finish_reason(reason), choice.stop_reason, num_tokens)

    def _take_prompt(self, output: RequestOutput) -> None:
        self.prompt_token_ids = output.prompt_token_ids
        self.prompt_logprobs = output.prompt_logprobs
        self.num_cached_tokens = output.num_cached_tokens
