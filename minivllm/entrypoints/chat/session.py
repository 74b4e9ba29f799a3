"""`ChatSession`: one chat request on the engine, as a stream of `ChatEvent`s. Used by the serving object of each chat API."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from minivllm.errors import ServerError
from minivllm.messages.output import Logprob, RequestOutput
from minivllm.messages.prompt import TokensPrompt
from minivllm.messages.sampling_params import SamplingParams
from minivllm.text.parsers.events import ChatEvent, Finish, TextDelta

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine


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
    ):
        self._outputs = engine.generate(prompt, params, request_id, priority=priority, timeout=timeout)
        self.prompt_token_ids: list[int] = prompt["prompt_token_ids"]
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self.num_cached_tokens = 0
        self.num_completion_tokens = 0

    async def events(self) -> AsyncGenerator[ChatEvent, None]:
        """Every choice gives `TextDelta`s, then one `Finish`. Refusals are raised before the first event."""
        started = False
        async with aclosing(self._outputs) as outputs:
            async for output in outputs:
                if not started:
                    started = True
                    self._take_prompt(output)
                for choice in output.outputs:
                    self.num_completion_tokens += len(choice.token_ids)
                    if choice.token_ids or choice.text:
                        yield TextDelta(choice.index, choice.text, choice.token_ids, choice.logprobs)
                    if choice.finish_reason is not None:
                        if choice.finish_reason == "error":
                            raise ServerError("The model failed on this request.")
                        yield Finish(choice.index, choice.finish_reason, choice.stop_reason)

    def _take_prompt(self, output: RequestOutput) -> None:
        self.prompt_token_ids = output.prompt_token_ids
        self.prompt_logprobs = output.prompt_logprobs
        self.num_cached_tokens = output.num_cached_tokens
