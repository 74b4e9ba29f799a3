"""`RequestStream`: one user request on its way back: its choices, its times, and the mailbox that its reader waits at."""

import asyncio
from typing import Any

from minivllm.engine.choice import Choice
from minivllm.errors import ClientError, MinivllmError
from minivllm.messages.output import Logprob, RequestMetrics, RequestOutput, TokenOutput
from minivllm.messages.pooling_output import Pooled, PoolingOutput, PoolingRequestOutput
from minivllm.messages.request import EngineRequest
from minivllm.messages.sampling_params import OutputKind
from minivllm.text.logprobs import to_logprobs
from minivllm.text.tokenizer import Tokenizer


class RequestStream:
    """The mailbox is no queue: what a slow reader has not taken is merged with what comes later."""

    def __init__(self, request_id: str, prompt: str | None, request: EngineRequest, tokenizer: Tokenizer):
        params = request.sampling_params
        self.request_id = request_id  # the user's; the core knows `request.request_id`
        self.request = request
        self.choices = [Choice(index, tokenizer, request.prompt_token_ids, params) for index in range(params.n)]
        self.metrics = RequestMetrics(arrival_time=request.arrival_time)
        self.num_open = params.n
        self.num_cached_tokens = 0
        self.error: MinivllmError | None = None
        self._pooled: Pooled | None = None
        self._kv_transfer_params: dict[str, Any] | None = None
        self._prompt = prompt
        self._tokenizer = tokenizer if params.detokenize else None
        self._kind = params.output_kind
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._taken = False  # the reader has had an output

    @property
    def finished(self) -> bool:
        return self.num_open == 0

    def feed(self, choice: Choice, output: TokenOutput, time: float) -> bool:
        """Take in what a step brought for one choice; True if a stop string ended it."""
        metrics = self.metrics
        if metrics.first_scheduled_time is None and output.scheduled_time:
            metrics.first_scheduled_time = output.scheduled_time
        self._pooled = output.pooled
        self._kv_transfer_params = output.kv_transfer_params
        if output.token_ids or output.pooled is not None:
            if metrics.first_token_time is None:
                metrics.first_token_time = time
            metrics.last_token_time = choice.last_token_time = time
        if choice.index == 0:
            self.num_cached_tokens = output.num_cached_tokens
            if output.prompt_logprobs is not None:
                self._prompt_logprobs = self._prompt_logprobs or [None]  # nothing precedes the first token
                self._prompt_logprobs += [to_logprobs(entry, self._tokenizer) for entry in output.prompt_logprobs]
        hit = choice.feed(output)
        if choice.finish_reason is not None:
            self.close_choice(time)
        return hit

    def close_choice(self, time: float) -> None:
        """One of the choices has ended."""
        self.num_open -= 1
        if self.num_open == 0:
            self.metrics.finished_time = time

    def has_output(self) -> bool:
        if self.finished or self._kind == OutputKind.FINAL_ONLY:
            return self.finished and any(choice.dirty for choice in self.choices)
        if self.request.sampling_params.prompt_logprobs is not None and self._prompt_logprobs is None and not self._taken:
            return len(self.request.prompt_token_ids) == 1 and self.choices[0].dirty  # they belong to the first output
        return any(choice.dirty for choice in self.choices)

    def take(self) -> RequestOutput | PoolingRequestOutput[PoolingOutput]:
        """All that the reader may have now. With DELTA: what is new, of the choices that have something new."""
        if self.request.pooling_params is not None:
            return self._take_pooled()
        delta = self._kind == OutputKind.DELTA
        if self._prompt_logprobs is None and self.request.sampling_params.prompt_logprobs is not None and not self._taken:
            self._prompt_logprobs = [None]
        output = RequestOutput(
            self.request_id,
            self._prompt,
            self.request.prompt_token_ids,
            None if delta and self._taken else self._prompt_logprobs,
            [choice.take() for choice in self.choices if choice.dirty or not delta],
            self.num_open == 0,
            self.num_cached_tokens,
            self.metrics,
            self._kv_transfer_params,
        )
        self._taken = True
        return output

    def _take_pooled(self) -> PoolingRequestOutput[PoolingOutput]:
        if self._pooled is None:
            raise self.error or ClientError(f"Request {self.request_id} was aborted.")
        ids, output = self.request.prompt_token_ids, PoolingOutput(self._pooled)
        return PoolingRequestOutput(self.request_id, output, ids, num_cached_tokens=self.num_cached_tokens)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: MinivllmError) -> None:
        """End with an error, unless it has ended well before."""
        if not self.finished:
            self.error = error
            self.wake()

    async def next(self) -> RequestOutput | PoolingRequestOutput[PoolingOutput]:
        """The next output; the error that ended the request, if one did."""
        while True:
            if self.error is not None:
                raise self.error
            if self.has_output():
                return self.take()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
