"""`GET /version`."""

from fastapi import APIRouter
from starlette.responses import Response
from typing_extensions import TypedDict

from minivllm.entrypoints.openai.reply import json_response
from minivllm.version import __version__


class Version(TypedDict):
    version: str


router = APIRouter(tags=["Server"])


@router.get("/version", responses={200: {"model": Version}})
async def version() -> Response:
    return json_response({"version": __version__})
