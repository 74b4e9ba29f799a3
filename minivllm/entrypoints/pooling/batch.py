"""`PoolingBatch`: the texts of one call through the engine, all at a time, and what is the same in every reply."""

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.http.dependencies import new_request_id
from minivllm.entrypoints.http.sse import until_disconnect
from minivllm.entrypoints.openai.reply import json_response
from minivllm.entrypoints.openai.sampling_codec import check_cache_salt, check_model, timeout
from minivllm.entrypoints.openai.shared_schema import Usage, usage
from minivllm.entrypoints.pooling.schema import PoolingRequestBase
from minivllm.messages.pooling_output import Pooled, PoolingOutput, PoolingRequestOutput
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.prompt import Prompt

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine

BREATH = 10_000  # characters; after so many, other requests have their turn


class PoolingBatch:
    """`ClientError` if the request is for another model. The figures are complete after `run`."""

    def __init__(self, engine: "AsyncLLMEngine", body: PoolingRequestBase, raw_request: Request, prefix: str):
        self._engine = engine
        self._body = body
        self._receive = raw_request.receive
        self.model = check_model(body.model, engine.config.model.served_model_names)
        check_cache_salt(body.cache_salt)
        self.request_id = new_request_id(prefix, body.request_id, raw_request)
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0

    def params(self, **more: Any) -> PoolingParams:
        body = self._body
        return PoolingParams(
            use_activation=body.use_activation,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            truncation_side=body.truncation_side or "right",
            **more,
        )

    async def run(self, prompts: list[Prompt], params: PoolingParams) -> list[Pooled]:
        """Results in the order of the prompts. All end when one fails, or when the client hangs up."""
        self._engine.check_admission(len(prompts))
        outputs = await until_disconnect(self._receive, self._run_all(prompts, params))
        self.num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        self.num_cached_tokens = sum(output.num_cached_tokens for output in outputs)
        return [output.outputs.data for output in outputs]

    def usage(self) -> Usage:
        return usage(self.num_prompt_tokens, 0, self.num_cached_tokens)

    def reply(self, data: list[Any]) -> Response:
        head = {"id": self.request_id, "object": "list", "created": int(time.time()), "model": self.model}
        return json_response(head | {"data": data, "usage": self.usage()})

    async def _run_all(self, prompts: list[Prompt], params: PoolingParams) -> list[PoolingRequestOutput[PoolingOutput]]:
        tasks: list[asyncio.Task[PoolingRequestOutput[PoolingOutput]]] = []
        unread = 0
        try:
            for number, prompt in enumerate(prompts):
                tasks.append(asyncio.create_task(self._run_one(number, prompt, params)))
                unread += len(prompt["prompt"]) if isinstance(prompt, dict) and "prompt" in prompt else 0
                if unread > BREATH:  # each is tokenized as it starts
                    unread = 0
                    await asyncio.sleep(0)
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_one(self, number: int, prompt: Prompt, params: PoolingParams) -> PoolingRequestOutput[PoolingOutput]:
        body = self._body
        limit = timeout(body.timeout_ms)
        outputs = self._engine.encode(prompt, params, f"{self.request_id}-{number}", priority=body.priority or 0, timeout=limit)
        async with aclosing(outputs):
            return await outputs.__anext__()
