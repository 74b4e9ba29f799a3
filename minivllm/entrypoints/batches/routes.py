"""`/v1/files` and `/v1/batches`, in the shapes of OpenAI's API. 404 where the server has no --storage-dir."""

import asyncio
import re
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from minivllm.entrypoints.batches.lines import ENDPOINTS
from minivllm.entrypoints.batches.runner import BatchRunner
from minivllm.entrypoints.http.dependencies import JSONRoute, app_state
from minivllm.entrypoints.http.paging import page
from minivllm.entrypoints.openai.reply import json_response
from minivllm.entrypoints.openai.shared_schema import ERRORS
from minivllm.errors import ClientError, NotFoundError

router = APIRouter(tags=["Files and batches"], route_class=JSONRoute)
upload_router = APIRouter(tags=["Files and batches"])

Limit = Annotated[int, Query(ge=1, le=10_000)]
_WINDOW = re.compile(r"([1-9]\d{0,4})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_WINDOW = 30 * 86400
_UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                    },
                }
            }
        },
    }
}


class BatchRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    input_file_id: str = Field(max_length=64)
    endpoint: str = Field(max_length=64)
    completion_window: str = "24h"
    metadata: Annotated[dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=16)] | None = None


@upload_router.post("/v1/files", responses=ERRORS, openapi_extra=_UPLOAD)
async def create_file(raw_request: Request) -> Response:
    """Keep a JSONL file as the input of batches."""
    runner = _runner(raw_request)
    if not raw_request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise ClientError("Send the file as multipart/form-data, with the fields `file` and `purpose`.", param="file")
    async with raw_request.form(max_files=1, max_fields=8) as form:
        file, purpose = form.get("file"), form.get("purpose")
        if not isinstance(file, UploadFile):
            raise ClientError("file: this field is required, and must be a file.", param="file")
        if purpose != "batch":
            raise ClientError(f'purpose must be "batch", got {str(purpose)[:64]!r}.', param="purpose")
        lifetime = _lifetime(form.get("expires_after[anchor]"), form.get("expires_after[seconds]"))
        new = await asyncio.to_thread(runner.files.add, file.file, (file.filename or "upload")[:255], "batch", lifetime)
    return json_response(new)


@router.get("/v1/files", responses=ERRORS)
async def list_files(
    raw_request: Request,
    purpose: str | None = None,
    after: str | None = None,
    limit: Limit = 10_000,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """What is kept: uploads and the results of batches."""
    files = [file for file in _runner(raw_request).files.list() if purpose in (None, file.purpose)]
    return json_response(page(files, after, limit, order))


@router.get("/v1/files/{file_id}", responses=ERRORS)
async def retrieve_file(file_id: str, raw_request: Request) -> Response:
    """Facts about one file."""
    return json_response(_runner(raw_request).files.get(file_id))


@router.get("/v1/files/{file_id}/content", responses=ERRORS)
async def retrieve_file_content(file_id: str, raw_request: Request) -> Response:
    """The file itself."""
    files = _runner(raw_request).files
    return FileResponse(files.path(file_id), media_type="application/octet-stream", filename=files.get(file_id).filename)


@router.delete("/v1/files/{file_id}", responses=ERRORS)
async def delete_file(file_id: str, raw_request: Request) -> Response:
    """Forget a file. Not while a batch that has not ended reads it."""
    runner = _runner(raw_request)
    if any(batch.is_open and batch.input_file_id == file_id for batch in runner.batches.list()):
        raise ClientError("A batch that has not ended reads this file: cancel it first.", param="file_id")
    runner.files.delete(file_id)
    return json_response({"id": file_id, "object": "file", "deleted": True})


@router.post("/v1/batches", responses=ERRORS)
async def create_batch(body: BatchRequest, raw_request: Request) -> Response:
    """Serve all lines of a file, behind the requests of clients."""
    runner = _runner(raw_request)
    if body.endpoint not in ENDPOINTS:
        raise ClientError(f"endpoint must be one of {', '.join(ENDPOINTS)}, got {body.endpoint!r}.", param="endpoint")
    lifetime = _window(body.completion_window)
    return json_response(runner.create(body.endpoint, body.input_file_id, body.completion_window, lifetime, body.metadata))


@router.get("/v1/batches", responses=ERRORS)
async def list_batches(raw_request: Request, after: str | None = None, limit: Limit = 20) -> Response:
    """Newest first."""
    return json_response(page(_runner(raw_request).batches.list(), after, limit))


@router.get("/v1/batches/{batch_id}", responses=ERRORS)
async def retrieve_batch(batch_id: str, raw_request: Request) -> Response:
    """Where a batch stands."""
    return json_response(_runner(raw_request).batches.get(batch_id))


@router.post("/v1/batches/{batch_id}/cancel", responses=ERRORS)
async def cancel_batch(batch_id: str, raw_request: Request) -> Response:
    """End a batch; what is done stays in its output file."""
    return json_response(_runner(raw_request).cancel(batch_id))


def _runner(raw_request: Request) -> BatchRunner:
    runner = app_state(raw_request).batch_runner
    if runner is None:
        raise NotFoundError("This server keeps no files: start it with --storage-dir DIR for files and batches.")
    return runner


def _window(text: str) -> int:
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= MAX_WINDOW:
        raise ClientError(f"completion_window must be like 24h, up to 30d, got {text[:16]!r}.", param="completion_window")
    return seconds


def _lifetime(anchor: object, seconds: object) -> int | None:
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at" or not isinstance(seconds, str) or not re.fullmatch(r"[1-9]\d{0,8}", seconds):
        raise ClientError('expires_after must have the anchor "created_at" and a number of seconds.', param="expires_after")
    return int(seconds)
