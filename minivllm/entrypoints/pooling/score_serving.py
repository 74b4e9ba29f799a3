"""`ServingScores`: serves `/score` and `/rerank`. Made by `http.app.init_app_state`."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.openai.reply import json_response
from minivllm.entrypoints.pooling.batch import PoolingBatch
from minivllm.entrypoints.pooling.pairs import cosine, pair_up
from minivllm.entrypoints.pooling.schema import RerankRequest, ScoreRequest
from minivllm.errors import ClientError
from minivllm.messages.prompt import Prompt, TextPrompt

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine

_FIELDS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


class ServingScores:
    """A cross-encoder reads both texts of a pair at once; an embedding model each text once, however many pairs it is in."""

    def __init__(self, engine: "AsyncLLMEngine"):
        self._engine = engine

    async def create_score(self, body: ScoreRequest, raw_request: Request) -> Response:
        names = next((pair for pair in _FIELDS if all(getattr(body, name) is not None for name in pair)), None)
        if names is None:
            raise ClientError("Give two fields: text_1 and text_2, or queries and documents.", param="text_1")
        pairs = pair_up(getattr(body, names[0]), getattr(body, names[1]), names[0])
        batch = PoolingBatch(self._engine, body, raw_request, "score")
        scores = await self._score(batch, pairs, body.cache_salt)
        return batch.reply([{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)])

    async def do_rerank(self, body: RerankRequest, raw_request: Request) -> Response:
        """Documents by falling score; with top_n, only the first ones."""
        if body.top_n is not None and body.top_n < 0:
            raise ClientError(f"top_n must be non-negative, got {body.top_n}.", param="top_n", value=body.top_n)
        pairs = pair_up([body.query], body.documents, "documents")
        batch = PoolingBatch(self._engine, body, raw_request, "rerank")
        scores = await self._score(batch, pairs, body.cache_salt)
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or len(scores)]
        total = batch.num_prompt_tokens
        return json_response(
            {
                "id": batch.request_id,
                "model": batch.model,
                "usage": {"prompt_tokens": total, "total_tokens": total},
                "results": [
                    {"index": index, "document": {"text": pairs[index][1]}, "relevance_score": scores[index]} for index in order
                ],
            }
        )

    async def _score(self, batch: PoolingBatch, pairs: list[tuple[str, str]], salt: str | None) -> list[float]:
        pooling = self._engine.config.pooling
        if pooling is not None and pooling.task == "classify":
            prompts: list[Prompt] = [_prompt(first, salt, second) for first, second in pairs]
            results = await batch.run(prompts, batch.params(task="classify"))
            return [each.tolist()[0] for each in results]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
        results = await batch.run([_prompt(text, salt) for text in numbers], batch.params(task="embed"))
        vectors = [each.tolist() for each in results]
        return [cosine(vectors[numbers[first]], vectors[numbers[second]]) for first, second in pairs]


def _prompt(text: str, salt: str | None, second: str | None = None) -> TextPrompt:
    prompt: TextPrompt = {"prompt": text}
    if second is not None:
        prompt["second"] = second
    if salt is not None:
        prompt["cache_salt"] = salt
    return prompt
