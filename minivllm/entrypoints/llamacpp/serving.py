"""`ServingInfill`: serves `/infill` with the engine. Made by `http.app.init_app_state`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.chat.prompt import filler
from minivllm.entrypoints.http.dependencies import new_request_id
from minivllm.entrypoints.http.sse import EventStream, until_disconnect
from minivllm.entrypoints.llamacpp.schema import Infilled, InfillRequest
from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.entrypoints.openai.reply import encode_json, json_response
from minivllm.errors import ClientError, ServerError
from minivllm.messages.output import CompletionOutput, RequestOutput
from minivllm.messages.prompt import TokensPrompt
from minivllm.messages.sampling_params import SamplingParams

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine

STOP_TYPES = {"stop": "eos", "length": "limit"}


class ServingInfill:
    def __init__(self, engine: "AsyncLLMEngine"):
        self._engine = engine

    async def infill(self, body: InfillRequest, raw_request: Request) -> Response:
        """Whole or streamed reply. Refusals are raised, before the first byte of a stream too."""
        engine = self._engine
        model = sampling.check_model(body.model, engine.config.model.served_model_names)
        filling = filler(engine.tokenizer, "input_prefix")
        params = self._params(body)
        if not params.ignore_eos:
            params.stop_token_ids = [*params.stop_token_ids, *filling.stop_token_ids]
        engine.check_admission(1)
        ids = await asyncio.to_thread(
            filling.encode,
            body.input_prefix,
            body.input_suffix,
            files=[(file.filename, file.text) for file in body.input_extra or ()],
            start=body.prompt,
            add_special_tokens=body.add_special_tokens is not False,
        )
        prompt: TokensPrompt = {"prompt_token_ids": ids}
        if body.cache_salt is not None:
            prompt["cache_salt"] = body.cache_salt
        request_id = new_request_id("infill", body.request_id, raw_request)
        outputs = engine.generate(prompt, params, request_id, priority=body.priority or 0, timeout=_timeout(body))
        if body.stream:
            return EventStream(_stream(outputs, model), end=b"")
        (reply,) = await until_disconnect(raw_request.receive, _all(_replies(outputs, model)))
        return json_response(reply)

    def _params(self, body: InfillRequest) -> SamplingParams:
        config = self._engine.config
        sampling.check_supported(body)
        sampling.check_cache_salt(body.cache_salt)
        for name in ("prompt_logprobs", "truncate_prompt_tokens", "return_token_ids"):
            if getattr(body, name) is not None:
                raise ClientError(f"`{name}` is not there for /infill.", param=name)
        if body.n not in (None, 1):
            raise ClientError(f"n must be 1 for /infill, got {body.n}.", param="n")
        if body.repetition_penalty is None:
            body.repetition_penalty = body.repeat_penalty
        if body.n_predict is not None and body.n_predict < -1:
            raise ClientError(f"n_predict must be at least -1, got {body.n_predict}.", param="n_predict")
        max_tokens = body.max_tokens if body.n_predict is None else body.n_predict
        return sampling.sampling_params(
            body,
            config.generation.defaults,
            max_tokens=None if max_tokens == -1 else max_tokens,
            logprobs=None,
            prompt_logprobs=None,
            max_logprobs=0,
        )


def _timeout(body: InfillRequest) -> float | None:
    """In seconds. What is given for the prompt and what is given for the text make one limit here."""
    if not body.t_max_predict_ms:
        return sampling.timeout(body.timeout_ms)
    return (body.t_max_predict_ms + (body.t_max_prompt_ms or 0)) / 1000


async def _replies(outputs: AsyncGenerator[RequestOutput, None], model: str) -> AsyncGenerator[Infilled, None]:
    num_tokens = 0
    async with aclosing(outputs):
        async for output in outputs:
            (choice,) = output.outputs
            if choice.finish_reason == "error":
                raise ServerError("The model failed on this request.")
            num_tokens += len(choice.token_ids)
            yield {
                "content": choice.text,
                "stop": choice.finish_reason is not None,
                "stop_type": _stop_type(choice),
                "stopping_word": choice.stop_reason if isinstance(choice.stop_reason, str) else "",
                "model": model,
                "tokens_predicted": num_tokens,
                "tokens_evaluated": len(output.prompt_token_ids),
                "tokens_cached": output.num_cached_tokens,
                "truncated": False,
            }


def _stop_type(choice: CompletionOutput) -> str:
    return "word" if isinstance(choice.stop_reason, str) else STOP_TYPES.get(choice.finish_reason or "", "none")


async def _all(replies: AsyncGenerator[Infilled, None]) -> list[Infilled]:
    async with aclosing(replies):
        return [reply async for reply in replies]


async def _stream(outputs: AsyncGenerator[RequestOutput, None], model: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(_replies(outputs, model)) as replies:
        async for reply in replies:
            yield b"data: " + encode_json(reply) + b"\n\n"
