"""`GET /v1/models` and `/v1/models/{id}`."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from minivllm.entrypoints.http.dependencies import app_state
from minivllm.entrypoints.openai.reply import json_response
from minivllm.entrypoints.openai.shared_schema import ERRORS
from minivllm.errors import NotFoundError


class Model(TypedDict):
    id: str
    object: str
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    permission: list[dict[str, Any]]


class ModelList(TypedDict):
    object: str
    data: list[Model]


router = APIRouter(tags=["OpenAI"])


@router.get("/v1/models", responses={200: {"model": ModelList}, **ERRORS})
async def list_models(raw_request: Request) -> Response:
    """The names under which this server answers."""
    return json_response({"object": "list", "data": _models(raw_request)})


@router.get("/v1/models/{model_id:path}", responses={200: {"model": Model}, **ERRORS})
async def retrieve_model(model_id: str, raw_request: Request) -> Response:
    """One model by name; hub names have a slash in them."""
    for model in _models(raw_request):
        if model["id"] == model_id:
            return json_response(model)
    raise NotFoundError(f"The model `{model_id[:128]}` does not exist.", param="model")


def _models(raw_request: Request) -> list[Model]:
    state = app_state(raw_request)
    engine = state.engine
    return [
        {
            "id": name,
            "object": "model",
            "created": state.started,
            "owned_by": "minivllm",
            "root": engine.config.model.model,
            "parent": None,
            "max_model_len": engine.max_model_len,
            "permission": [_permission(state.started)],
        }
        for name in engine.config.model.served_model_names
    ]


def _permission(created: int) -> dict[str, Any]:
    return {
        "id": "modelperm-minivllm",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
