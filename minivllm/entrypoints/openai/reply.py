"""What is the same in every chunk and every whole reply of one request, and their encoding."""

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.responses import Response

encode_json = msgspec.json.encode


def json_response(body: Any, status: int = 200) -> Response:
    return Response(encode_json(body), status, media_type="application/json")


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
