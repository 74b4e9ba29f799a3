"""`OpenAIServingCompletion`: serves `/v1/completions` with the engine. Made by `http.app.init_app_state`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.chat.prompt import encode, filler
from minivllm.entrypoints.http.dependencies import new_request_id
from minivllm.entrypoints.http.sse import EventStream, until_disconnect
from minivllm.entrypoints.openai import completion_codec as codec
from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.entrypoints.openai.completion_schema import CompletionRequest
from minivllm.entrypoints.openai.logprobs_codec import LogprobsCodec
from minivllm.entrypoints.openai.reply import ReplyHead, json_response, rendered
from minivllm.errors import ClientError
from minivllm.messages.output import RequestOutput
from minivllm.messages.prompt import TokensPrompt
from minivllm.messages.sampling_params import SamplingParams

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine

Outputs = AsyncGenerator[tuple[int, RequestOutput], None]  # with the number of the prompt


class OpenAIServingCompletion:
    def __init__(self, engine: "AsyncLLMEngine", fingerprint: str):
        self._engine = engine
        self._fingerprint = fingerprint

    async def create_completion(self, body: CompletionRequest, raw_request: Request) -> Response:
        """Whole or streamed reply. Refusals are raised, before the first byte of a stream too."""
        engine = self._engine
        model = sampling.check_model(body.model, engine.config.model.served_model_names)
        options = sampling.check_stream_options(body)
        request_id = new_request_id("cmpl", body.request_id, raw_request)
        params = self._params(body)
        engine.check_admission(params.n * len(body.prompt))
        prompts = await self._prompts(body)
        records = [codec.PromptRecord(prompt.get("prompt", "")) for prompt in prompts]
        encoder = codec.CompletionEncoder(
            body,
            ReplyHead(request_id, model, self._fingerprint),
            records,
            params.n,
            LogprobsCodec(engine.tokenizer, params.logprobs or 0, bool(body.return_tokens_as_token_ids)),
        )
        outputs = self._outputs(
            [
                engine.generate(
                    prompt,
                    params,
                    f"{request_id}-{number}",
                    priority=body.priority or 0,
                    timeout=sampling.timeout(body.timeout_ms),
                )
                for number, prompt in enumerate(prompts)
            ],
            prompts,
            records,
            echo=bool(body.echo),
        )
        if body.stream:
            return EventStream(_stream(outputs, codec.CompletionStreamEncoder(encoder, options)))
        finals = await until_disconnect(raw_request.receive, _finals(outputs, len(prompts)))
        return json_response(encoder.whole(finals))

    async def render_completion(self, body: CompletionRequest, raw_request: Request) -> Response:
        """What `create_completion` would give to the engine."""
        model = sampling.check_model(body.model, self._engine.config.model.served_model_names)
        sampling.check_stream_options(body)
        request_id = new_request_id("cmpl", body.request_id, raw_request)
        params = self._params(body)
        prompts = await self._prompts(body)
        return json_response(
            [rendered(f"{request_id}-{number}", model, body, prompt, params) for number, prompt in enumerate(prompts)]
        )

    def _params(self, body: CompletionRequest) -> SamplingParams:
        config = self._engine.config
        params = codec.decode(body, config.generation.defaults, config.model.max_logprobs)
        if body.suffix and not params.ignore_eos:
            params.stop_token_ids = [*params.stop_token_ids, *filler(self._engine.tokenizer, "suffix").stop_token_ids]
        return params

    async def _prompts(self, body: CompletionRequest) -> list[TokensPrompt]:
        return [await self._prompt(body, given) for given in body.prompt]

    async def _prompt(self, body: CompletionRequest, given: str | list[int]) -> TokensPrompt:
        special = body.add_special_tokens is not False
        prompt: TokensPrompt
        if body.suffix:
            filling = filler(self._engine.tokenizer, "suffix")
            ids = await asyncio.to_thread(filling.encode, given, body.suffix, add_special_tokens=special)
            prompt = {"prompt_token_ids": ids}
        elif isinstance(given, str):
            prompt = {"prompt_token_ids": await encode(self._engine.tokenizer, given, special), "prompt": given}
        else:
            prompt = {"prompt_token_ids": given}
        if not prompt["prompt_token_ids"]:
            raise ClientError("The prompt is empty.", param="prompt")
        if body.cache_salt is not None:
            prompt["cache_salt"] = body.cache_salt
        return prompt

    async def _outputs(
        self,
        generators: list[AsyncGenerator[RequestOutput, None]],
        prompts: list[TokensPrompt],
        records: list[codec.PromptRecord],
        echo: bool,
    ) -> Outputs:
        """All outputs as they come; fills the record of a prompt with its first one."""
        async with aclosing(_merge(generators)) as merged:
            async for number, output in merged:
                record = records[number]
                if not record.token_ids:
                    record.token_ids = output.prompt_token_ids
                    record.logprobs = output.prompt_logprobs
                    record.num_cached_tokens = output.num_cached_tokens
                    if echo and (not record.text or len(record.token_ids) != len(prompts[number]["prompt_token_ids"])):
                        record.text = self._engine.tokenizer.decode(record.token_ids)  # ids were given, or truncated
                yield number, output


async def _merge(generators: list[AsyncGenerator[RequestOutput, None]]) -> Outputs:
    if len(generators) == 1:
        async with aclosing(generators[0]) as outputs:
            async for output in outputs:
                yield 0, output
        return
    queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] = asyncio.Queue()

    async def pump(number: int, generator: AsyncGenerator[RequestOutput, None]) -> None:
        try:
            async with aclosing(generator) as outputs:
                async for output in outputs:
                    queue.put_nowait((number, output))
            queue.put_nowait((number, None))
        except Exception as exc:
            queue.put_nowait((number, exc))

    tasks = [asyncio.create_task(pump(number, generator)) for number, generator in enumerate(generators)]
    try:
        running = len(tasks)
        while running:
            number, item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield number, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _finals(outputs: Outputs, num_prompts: int) -> list[RequestOutput]:
    finals: dict[int, RequestOutput] = {}
    async with aclosing(outputs):
        async for number, output in outputs:
            known = finals.setdefault(number, output)
            if known is not output:
                known.outputs += output.outputs
    return [finals[number] for number in range(num_prompts)]


async def _stream(outputs: Outputs, stream: codec.CompletionStreamEncoder) -> AsyncGenerator[bytes, None]:
    async with aclosing(outputs):
        async for number, output in outputs:
            if chunk := b"".join([stream.encode(number, choice) for choice in output.outputs]):
                yield chunk
    if chunk := stream.last():
        yield chunk
