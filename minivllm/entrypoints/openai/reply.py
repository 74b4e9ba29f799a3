"""What is the same in every chunk and every whole reply of one request, and their encoding."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec
from pydantic import BaseModel
from starlette.responses import Response

from minivllm.entrypoints.openai.shared_schema import GenerationRequest, Rendered
from minivllm.messages.prompt import TokensPrompt
from minivllm.messages.sampling_params import SamplingParams
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

MAX_NAMED = 20  # fields that nobody knows
MAX_NAME = 64

encode_json = msgspec.json.encode


def json_response(body: Any, status: int = 200) -> Response:
    return Response(encode_json(body), status, media_type="application/json")


def naming_ignored(reply: Response, body: BaseModel, is_known: Callable[[str], bool] = lambda name: False) -> Response:
    """`reply` with a header that names the fields of its request that nobody knows, if there are any."""
    unknown = [quote(name[:MAX_NAME]) for name in body.model_extra or {} if not is_known(name)]
    if unknown:
        names = ", ".join(unknown[:MAX_NAMED])
        logger.debug("Unknown fields of a request ignored: %s", names)
        reply.headers["X-Minivllm-Ignored"] = names
    return reply


def rendered(request_id: str, model: str, body: GenerationRequest, prompt: TokensPrompt, params: SamplingParams) -> Rendered:
    """What a request gives to the engine, for the routes that only show it."""
    return {
        "request_id": request_id,
        "model": model,
        "prompt": prompt.get("prompt"),
        "token_ids": prompt["prompt_token_ids"],
        "sampling_params": msgspec.structs.asdict(params),
        "stream": bool(body.stream),
        "stream_options": None if body.stream_options is None else body.stream_options.model_dump(exclude_unset=True),
        "cache_salt": body.cache_salt,
        "priority": body.priority or 0,
    }


@dataclass(slots=True)
class ReplyHead:
    """`id`, `created`, `model` and `system_fingerprint` of a reply."""

    id: str
    model: str
    system_fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }

    def event_start(self, kind: str) -> bytes:
        """The constant start of each event, up to and with the bracket that opens `choices`."""
        return b"data: " + encode_json(self.fields(kind))[:-1] + b',"choices":['
