"""`POST /v1/embeddings`, `/pooling`, `/classify`, `/score` and `/rerank`: each only on models that can do it.

Other paths of the same routes are left out of the schema, which is slow to build.
"""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from minivllm.entrypoints.http.dependencies import JSONRoute, app_state, needs
from minivllm.entrypoints.openai.reply import naming_ignored
from minivllm.entrypoints.openai.shared_schema import ERRORS
from minivllm.entrypoints.pooling.pairs import can_score
from minivllm.entrypoints.pooling.schema import (
    ClassificationRequest,
    ClassificationResponse,
    EmbeddingRequest,
    EmbeddingResponse,
    PoolingRequest,
    PoolingResponse,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
)

router = APIRouter(tags=["Pooling"], route_class=JSONRoute)

_EMBEDS = needs("Embeddings API", lambda pooling: pooling is not None and pooling.task == "embed")
_POOLS = needs("Pooling API", lambda pooling: pooling is not None)
_CLASSIFIES = needs("Classification API", lambda pooling: pooling is not None and pooling.task == "classify")
_SCORES = needs("Score API", can_score)
_RERANKS = needs("Rerank (Score) API", can_score)


@router.post("/v1/embeddings", responses={200: {"model": EmbeddingResponse}, **ERRORS}, dependencies=[_EMBEDS])
async def create_embedding(body: EmbeddingRequest, raw_request: Request) -> Response:
    """One vector for each text."""
    return naming_ignored(await app_state(raw_request).openai_serving_embedding.create_embedding(body, raw_request), body)


@router.post("/pooling", responses={200: {"model": PoolingResponse}, **ERRORS}, dependencies=[_POOLS])
async def create_pooling(body: PoolingRequest, raw_request: Request) -> Response:
    """What the model makes of each text; with `task: token_embed`, one vector for each token."""
    return naming_ignored(await app_state(raw_request).openai_serving_embedding.create_pooling(body, raw_request), body)


@router.post("/classify", responses={200: {"model": ClassificationResponse}, **ERRORS}, dependencies=[_CLASSIFIES])
@router.post("/v1/classify", include_in_schema=False, dependencies=[_CLASSIFIES])
async def create_classification(body: ClassificationRequest, raw_request: Request) -> Response:
    """Probabilities of the classes for each text."""
    return naming_ignored(await app_state(raw_request).openai_serving_embedding.create_classification(body, raw_request), body)


@router.post("/score", include_in_schema=False, dependencies=[_SCORES])
@router.post("/v1/score", responses={200: {"model": ScoreResponse}, **ERRORS}, dependencies=[_SCORES])
async def create_score(body: ScoreRequest, raw_request: Request) -> Response:
    """How well the texts of each pair go together."""
    return naming_ignored(await app_state(raw_request).serving_scores.create_score(body, raw_request), body)


@router.post("/rerank", include_in_schema=False, dependencies=[_RERANKS])
@router.post("/v1/rerank", responses={200: {"model": RerankResponse}, **ERRORS}, dependencies=[_RERANKS])
@router.post("/v2/rerank", include_in_schema=False, dependencies=[_RERANKS])
async def do_rerank(body: RerankRequest, raw_request: Request) -> Response:
    """Documents in the order in which they answer the query."""
    return naming_ignored(await app_state(raw_request).serving_scores.do_rerank(body, raw_request), body)
