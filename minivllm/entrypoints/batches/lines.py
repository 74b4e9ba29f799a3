"""One line of a batch: what a client writes, and what it reads. Used by `runner`."""

import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/score", "/v1/rerank")
MAX_LINES = 50_000
MAX_ERRORS = 20  # of a file, that are told


class Line(msgspec.Struct):
    """A request. `number` counts from 1."""

    number: int
    custom_id: str
    body: bytes


class LineError(msgspec.Struct):
    code: str
    message: str
    param: str | None = None
    line: int | None = None


class InvalidLines(Exception):
    """A file that is no batch; nothing of it has run."""

    def __init__(self, errors: list[LineError]):
        super().__init__(errors[0].message)
        self.errors = errors


class _Given(msgspec.Struct):
    custom_id: str
    body: dict[str, Any]
    url: str
    method: str = "POST"


def read_lines(path: Path, endpoint: str | None) -> list[tuple[Line, str]]:
    """The requests of a file with their routes. `endpoint`: the one that all must name; None: any. Raises `InvalidLines`."""
    lines: list[tuple[Line, str]] = []
    errors: list[LineError] = []
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            if len(lines) == MAX_LINES:
                errors.append(LineError("too_many_tasks", f"A batch has at most {MAX_LINES} lines.", None, number))
                break
            try:
                line, route = _read(number, text, endpoint)
                if line.custom_id in seen:
                    raise ValueError(f"custom_id {line.custom_id[:64]!r} is used twice.")
            except (ValueError, msgspec.MsgspecError, RecursionError) as e:
                errors.append(LineError("invalid_request", str(e), None, number))
                if len(errors) == MAX_ERRORS:
                    break
                continue
            seen.add(line.custom_id)
            lines.append((line, route))
    if not lines and not errors:
        errors.append(LineError("empty_file", "The file has no requests.", None, None))
    if errors:
        raise InvalidLines(errors)
    return lines


def _read(number: int, text: bytes, endpoint: str | None) -> tuple[Line, str]:
    given = msgspec.json.decode(text, type=_Given)
    if given.method != "POST":
        raise ValueError(f"method must be POST, got {given.method[:16]!r}.")
    if given.url not in ENDPOINTS:
        raise ValueError(f"url must be one of {', '.join(ENDPOINTS)}, got {given.url[:64]!r}.")
    if endpoint is not None and given.url != endpoint:
        raise ValueError(f"url must be the batch's endpoint {endpoint}, got {given.url}.")
    if not 0 < len(given.custom_id) <= 512:
        raise ValueError("custom_id must have 1 to 512 characters.")
    for name in ("stream", "background"):
        if given.body.get(name):
            raise ValueError(f"body.{name} must be false: a batch has whole answers and no streams.")
    return Line(number, given.custom_id, msgspec.json.encode(given.body)), given.url


def result_line(line: Line, status: int, body: bytes) -> bytes:
    """What came of a request that was served or refused."""
    response = {"status_code": status, "request_id": uuid.uuid4().hex, "body": msgspec.Raw(body)}
    return _encode(line, response, None)


def unrun_line(line: Line, code: str, message: str) -> bytes:
    """A request that was not served: the batch ended before."""
    return _encode(line, None, {"code": code, "message": message})


def _encode(line: Line, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    value = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": line.custom_id, "response": response, "error": error}
    return msgspec.json.encode(value) + b"\n"


def mend(path: Path) -> None:
    """Cut off a last line that was not written whole when the process ended."""
    if path.exists():
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)


def custom_ids(paths: Iterable[Path]) -> Iterator[str]:
    """Of the results in these files."""
    for path in paths:
        if path.exists():
            with path.open("rb") as file:
                for text in file:
                    yield msgspec.json.decode(text)["custom_id"]
