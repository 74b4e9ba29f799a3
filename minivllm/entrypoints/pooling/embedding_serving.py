"""`OpenAIServingEmbedding`: serves `/v1/embeddings`, `/pooling` and `/classify`. Made by `http.app.init_app_state`."""

import base64
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.chat.prompt import ChatPrompts
from minivllm.entrypoints.chat.request import ChatRequest
from minivllm.entrypoints.pooling.batch import PoolingBatch
from minivllm.entrypoints.pooling.schema import ClassificationRequest, EmbeddingRequest, PoolingRequest
from minivllm.errors import ClientError
from minivllm.messages.pooling_output import Pooled
from minivllm.messages.prompt import Prompt, TextPrompt, TokensPrompt
from minivllm.messages.sampling_params import SamplingParams

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine


class OpenAIServingEmbedding:
    """Of one request all texts are computed, or it fails."""

    def __init__(self, engine: "AsyncLLMEngine", prompts: ChatPrompts):
        self._engine = engine
        self._prompts = prompts

    async def create_embedding(self, body: EmbeddingRequest, raw_request: Request) -> Response:
        batch = PoolingBatch(self._engine, body, raw_request, "embd")
        params = batch.params(task="embed", dimensions=body.dimensions)
        results = await batch.run(await self._inputs(body), params)
        return batch.reply(
            [
                {"index": index, "object": "embedding", "embedding": _encode(each, body.encoding_format)}
                for index, each in enumerate(results)
            ]
        )

    async def create_pooling(self, body: PoolingRequest, raw_request: Request) -> Response:
        batch = PoolingBatch(self._engine, body, raw_request, "pool")
        results = await batch.run(await self._inputs(body), batch.params(task=body.task, dimensions=body.dimensions))
        return batch.reply(
            [
                {"index": index, "object": "pooling", "data": _encode(each, body.encoding_format)}
                for index, each in enumerate(results)
            ]
        )

    async def create_classification(self, body: ClassificationRequest, raw_request: Request) -> Response:
        batch = PoolingBatch(self._engine, body, raw_request, "classify")
        results = await batch.run(await self._inputs(body), batch.params(task="classify"))
        pooling = self._engine.config.pooling
        return batch.reply(
            [
                {"index": index, "label": _label(probs, pooling.labels if pooling else ()), "probs": probs}
                | {"num_classes": len(probs)}
                for index, probs in enumerate(each.tolist() for each in results)
            ]
        )

    async def _inputs(self, body: ClassificationRequest) -> list[Prompt]:
        if (body.input is None) == (body.messages is None):
            raise ClientError("Give either `input` or `messages`.", param="input")
        if body.messages is not None:
            return [await self._prompts.render(_chat_request(body))]
        special = body.add_special_tokens is not False
        prompts: list[Prompt] = []
        for given in body.input or ():
            prompt: TextPrompt | TokensPrompt
            prompt = {"prompt": given, "add_special_tokens": special} if isinstance(given, str) else {"prompt_token_ids": given}
            if body.cache_salt is not None:
                prompt["cache_salt"] = body.cache_salt
            prompts.append(prompt)
        return prompts


def _encode(pooled: Pooled, form: str) -> Any:
    """Numbers, or their bytes as base64 text (float32, little-endian)."""
    return base64.b64encode(pooled.data).decode() if form == "base64" else pooled.tolist()


def _label(probs: list[float], labels: tuple[str, ...]) -> str | None:
    best = max(range(len(probs)), key=probs.__getitem__)
    return labels[best] if best < len(labels) else None


def _chat_request(body: ClassificationRequest) -> ChatRequest:
    return ChatRequest(
        messages=[message.model_dump(exclude_unset=True) for message in body.messages or []],
        sampling_params=SamplingParams(),
        add_generation_prompt=bool(body.add_generation_prompt),
        continue_final_message=bool(body.continue_final_message),
        template_kwargs=body.chat_template_kwargs or {},
        add_special_tokens=bool(body.add_special_tokens),
        cache_salt=body.cache_salt,
    )
