"""`FileStore` and `BatchStore`: the folder with uploaded files, results and the state of batches.

DIR/files/file-….json     what `GET /v1/files/{id}` shows         DIR/batches/batch_….json          a `Batch`
DIR/files/file-….data     the content                             DIR/batches/batch_….output.jsonl  results so far
                                                                  DIR/batches/batch_….error.jsonl
"""

import os
import re
import shutil
import time
import uuid
from pathlib import Path
from typing import IO, Any

import msgspec

from minivllm.errors import ConfigError, NotFoundError, PayloadTooLargeError

MAX_FILES = 1000
MAX_BYTES = 8 << 30  # of all files together
_ID = re.compile(r"(file-|batch_)[0-9a-f]{32}")


class FileObject(msgspec.Struct):
    """Times are Unix seconds."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"
    expires_at: int | None = None


class Counts(msgspec.Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct):
    """As OpenAI's API shows it."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    object: str = "batch"
    status: str = "validating"
    errors: dict[str, Any] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = msgspec.field(default_factory=Counts)
    metadata: dict[str, str] | None = None

    @property
    def is_open(self) -> bool:
        return self.status in ("validating", "in_progress", "finalizing", "cancelling")

    def set_status(self, status: str) -> None:
        self.status = status
        setattr(self, f"{status}_at", now())


def now() -> int:
    return int(time.time())


class FileStore:
    def __init__(self, folder: Path):
        self._folder = _made(folder)
        self._known: dict[str, FileObject] = {}
        for path in folder.glob("file-*.json"):
            known = msgspec.json.decode(path.read_bytes(), type=FileObject)
            self._known[known.id] = known
        for path in folder.iterdir():  # left by an upload or a start that was cut off
            if path.suffix == ".part" or (path.suffix == ".data" and path.stem not in self._known):
                path.unlink()

    def add(self, source: IO[bytes], filename: str, purpose: str, lifetime: int | None = None) -> FileObject:
        """Copy `source` in. ClientError if there is no room. `lifetime` in seconds."""
        created = now()
        new = FileObject(f"file-{uuid.uuid4().hex}", 0, created, filename, purpose)
        new.expires_at = None if lifetime is None else created + lifetime
        path = self._data(new.id)
        try:
            with path.open("xb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                new.bytes = target.tell()
            if len(self.list()) >= MAX_FILES or sum(f.bytes for f in self._known.values()) + new.bytes > MAX_BYTES:
                room = f"{MAX_FILES} files of {MAX_BYTES >> 30} GiB together"
                raise PayloadTooLargeError(f"The server keeps at most {room}: delete some first.", param="file")
            write_whole(self._folder / f"{new.id}.json", new)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._known[new.id] = new
        return new

    def get(self, file_id: str) -> FileObject:
        self._drop_expired()
        if file_id not in self._known:
            raise NotFoundError(f"No such File object: {file_id[:64]}", param="id")
        return self._known[file_id]

    def list(self) -> list[FileObject]:
        """Newest first."""
        self._drop_expired()
        return sorted(self._known.values(), key=lambda f: (f.created_at, f.id), reverse=True)

    def path(self, file_id: str) -> Path:
        """Where the content is."""
        return self._data(self.get(file_id).id)

    def delete(self, file_id: str) -> None:
        self._forget(self.get(file_id))

    def _data(self, file_id: str) -> Path:
        assert _ID.fullmatch(file_id), file_id
        return self._folder / f"{file_id}.data"

    def _drop_expired(self) -> None:
        for known in [f for f in self._known.values() if f.expires_at is not None and f.expires_at <= time.time()]:
            self._forget(known)

    def _forget(self, known: FileObject) -> None:
        del self._known[known.id]
        (self._folder / f"{known.id}.json").unlink(missing_ok=True)
        self._data(known.id).unlink(missing_ok=True)


class BatchStore:
    def __init__(self, folder: Path):
        self._folder = _made(folder)
        self._known: dict[str, Batch] = {}
        for path in folder.glob("batch_*.json"):
            known = msgspec.json.decode(path.read_bytes(), type=Batch)
            self._known[known.id] = known

    def add(self, endpoint: str, input_file_id: str, window: str, lifetime: int, metadata: dict[str, str] | None) -> Batch:
        created = now()
        batch = Batch(f"batch_{uuid.uuid4().hex}", endpoint, input_file_id, window, created, created + lifetime)
        batch.metadata = metadata
        self._known[batch.id] = batch
        self.save(batch)
        return batch

    def get(self, batch_id: str) -> Batch:
        if batch_id not in self._known:
            raise NotFoundError(f"No such Batch object: {batch_id[:64]}", param="id")
        return self._known[batch_id]

    def list(self) -> list[Batch]:
        """Newest first."""
        return sorted(self._known.values(), key=lambda b: (b.created_at, b.id), reverse=True)

    def save(self, batch: Batch) -> None:
        write_whole(self._folder / f"{batch.id}.json", batch)

    def results(self, batch: Batch, kind: str) -> Path:
        """Where results go while the batch runs; `kind` is "output" or "error"."""
        return self._folder / f"{batch.id}.{kind}.jsonl"

    def forget_oldest(self, keep: int) -> None:
        """Ended batches beyond the newest `keep` are forgotten; their files stay."""
        for batch in self.list()[keep:]:
            if not batch.is_open:
                del self._known[batch.id]
                (self._folder / f"{batch.id}.json").unlink(missing_ok=True)


def write_whole(path: Path, value: object) -> None:
    """Either the old content or the new one is there, whenever the process ends."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(msgspec.json.encode(value))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"--storage-dir: cannot make {folder}: {e.strerror}.", param="storage_dir") from e
    return folder
