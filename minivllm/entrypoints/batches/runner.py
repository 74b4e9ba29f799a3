"""`BatchRunner`: runs batches one after another, several of their lines at a time. Made when the server starts."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import IO

import msgspec

from minivllm.entrypoints.batches import lines as batch_lines
from minivllm.entrypoints.batches.internal_call import Call
from minivllm.entrypoints.batches.lines import InvalidLines, Line
from minivllm.entrypoints.batches.storage import Batch, BatchStore, FileStore, now
from minivllm.errors import ClientError, MinivllmError, OverloadedError
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

MAX_OPEN = 100  # batches that have not ended
MAX_KEPT = 1000  # batches that are remembered
RETRY_SECONDS = 1.0  # when the engine's queue is full
OVERLOADED = 503


class BatchRunner:
    """State is on disk after every change: a server that is stopped or killed goes on where it was."""

    def __init__(self, files: FileStore, batches: BatchStore, call: Call, concurrency: int):
        self.files = files
        self.batches = batches
        self._call = call
        self._concurrency = concurrency
        self._new = asyncio.Event()
        self._cancelled: dict[str, asyncio.Event] = {}  # of the batches that are open
        self._task = asyncio.create_task(self._run(), name="minivllm-batches")

    def create(self, endpoint: str, input_file_id: str, window: str, lifetime: int, metadata: dict[str, str] | None) -> Batch:
        """Queue a batch. Its lines are checked when its turn comes, as its status tells."""
        self.files.get(input_file_id)
        if sum(batch.is_open for batch in self.batches.list()) >= MAX_OPEN:
            raise OverloadedError(f"{MAX_OPEN} batches wait already: wait for one to end, or cancel one.", retry_after=60)
        batch = self.batches.add(endpoint, input_file_id, window, lifetime, metadata)
        self.batches.forget_oldest(MAX_KEPT)
        self._new.set()
        return batch

    def cancel(self, batch_id: str) -> Batch:
        """Lines that are done stay in the output; `ClientError` if it has ended."""
        batch = self.batches.get(batch_id)
        if not batch.is_open or batch.status == "finalizing":
            raise ClientError(f"A batch with status {batch.status!r} cannot be cancelled.", param="batch_id")
        if batch.status != "cancelling":
            batch.set_status("cancelling")
            self.batches.save(batch)
            self._signal(batch).set()
        return batch

    async def stop(self) -> None:
        """What is not done stays for the next start."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def _signal(self, batch: Batch) -> asyncio.Event:
        return self._cancelled.setdefault(batch.id, asyncio.Event())

    async def _run(self) -> None:
        while True:
            self._new.clear()
            for batch in reversed(self.batches.list()):  # oldest first
                if batch.is_open:
                    try:
                        await self._run_batch(batch)
                    except Exception as e:
                        logger.exception("%s failed", batch.id)
                        message = e.message if isinstance(e, MinivllmError) else "The server failed on this batch."
                        self._fail(batch, [batch_lines.LineError("server_error", message)])
                    self._cancelled.pop(batch.id, None)
            await self._new.wait()

    async def _run_batch(self, batch: Batch) -> None:
        try:
            path = self.files.path(batch.input_file_id)
            lines = await asyncio.to_thread(batch_lines.read_lines, path, batch.endpoint)
        except InvalidLines as e:
            return self._fail(batch, e.errors)
        except (MinivllmError, OSError) as e:
            return self._fail(batch, [batch_lines.LineError("invalid_input_file", str(e))])
        if batch.status == "validating":
            batch.set_status("in_progress")
        batch.request_counts.total = len(lines)
        results = [self.batches.results(batch, kind) for kind in ("output", "error")]
        for each in results:
            batch_lines.mend(each)
        done = [set(batch_lines.custom_ids([each])) for each in results]
        batch.request_counts.completed, batch.request_counts.failed = map(len, done)
        self.batches.save(batch)
        left = [line for line, _ in lines if line.custom_id not in done[0] | done[1]]
        with results[0].open("ab") as output, results[1].open("ab") as errors:
            ending = await self._serve(batch, left, output, errors)
        self._finish(batch, ending)

    async def _serve(self, batch: Batch, left: list[Line], output: IO[bytes], errors: IO[bytes]) -> str:
        """Run what is left; returns the status that the batch ends with."""

        def write(line: Line, status: int, body: bytes) -> None:
            ok = status == 200
            file = output if ok else errors
            file.write(batch_lines.result_line(line, status, body))
            file.flush()
            batch.request_counts.completed += ok
            batch.request_counts.failed += not ok
            served.add(line.custom_id)

        served: set[str] = set()
        routed = [(line, batch.endpoint) for line in left]
        serving = asyncio.create_task(serve_lines(self._call, routed, self._concurrency, write))
        signal = self._signal(batch)
        if batch.status == "cancelling":
            signal.set()
        cancelled = asyncio.create_task(signal.wait())
        try:
            await asyncio.wait({serving, cancelled}, timeout=batch.expires_at - now(), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
                return "completed"
        finally:
            for task in (serving, cancelled):
                task.cancel()
            await asyncio.gather(serving, cancelled, return_exceptions=True)
        ending = "cancelled" if signal.is_set() else "expired"
        message = f"The batch {'was cancelled' if ending == 'cancelled' else ending} before this request ran."
        for line in left:
            if line.custom_id not in served:
                errors.write(batch_lines.unrun_line(line, f"batch_{ending}", message))
        return ending

    def _finish(self, batch: Batch, ending: str) -> None:
        batch.finalizing_at = now()
        for kind in ("output", "error"):
            path = self.batches.results(batch, kind)
            if path.exists() and path.stat().st_size:
                with path.open("rb") as file:
                    new = self.files.add(file, f"{batch.id}_{kind}.jsonl", "batch_output")
                setattr(batch, f"{kind}_file_id", new.id)
        batch.set_status(ending)
        self.batches.save(batch)
        for kind in ("output", "error"):
            self.batches.results(batch, kind).unlink(missing_ok=True)
        counts = batch.request_counts
        logger.info(
            "%s %s: of %d requests %d served, %d refused", batch.id, ending, counts.total, counts.completed, counts.failed
        )

    def _fail(self, batch: Batch, errors: Sequence[batch_lines.LineError]) -> None:
        batch.errors = {"object": "list", "data": msgspec.to_builtins(errors)}
        batch.set_status("failed")
        self.batches.save(batch)


async def serve_lines(
    call: Call, lines: Iterable[tuple[Line, str]], concurrency: int, write: Callable[[Line, int, bytes], None]
) -> None:
    """Serve all lines, `concurrency` at a time; `write` gets each as it is done."""
    waiting = iter(lines)

    async def work() -> None:
        for line, route in waiting:
            write(line, *await _when_admitted(call, route, line.body))

    await asyncio.gather(*(work() for _ in range(concurrency)))


async def _when_admitted(call: Call, route: str, body: bytes) -> tuple[int, bytes]:
    while (reply := await call(route, body))[0] == OVERLOADED:
        await asyncio.sleep(RETRY_SECONDS)
    return reply
