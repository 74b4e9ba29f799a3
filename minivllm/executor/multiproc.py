"""Workers in processes of this machine: plans go to all of them through shared memory, replies come back by pipes."""

import pickle
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any, cast

import msgspec

from minivllm.config.engine_config import EngineConfig
from minivllm.errors import EngineDeadError
from minivllm.executor.base import Executor
from minivllm.executor.launch import BROKEN, CALL, RAISED, RESULT, RETURNED, STEP
from minivllm.executor.worker_processes import WorkerProcesses
from minivllm.executor.world import make_world
from minivllm.messages.step import StepPlan, StepResult

_OTHERS_SECONDS = 1.0  # after one worker's refusal, for that of a lower rank; one that waits for the refusing will not come

_encoder = msgspec.msgpack.Encoder()
_result_decoder = msgspec.msgpack.Decoder(StepResult)


class _Step(Future[StepResult]):
    """Whoever asks for it reads the workers' replies."""

    def __init__(self, executor: "MultiprocExecutor"):
        super().__init__()
        self._executor = executor

    def done(self) -> bool:
        if not super().done():
            self._executor.read_replies(0.0)
        return super().done()

    def result(self, timeout: float | None = None) -> StepResult:
        while not super().done():
            self._executor.read_replies(timeout)
        return super().result()


class MultiprocExecutor(Executor):
    def __init__(self, config: EngineConfig):
        world = make_world(config)
        self.max_in_flight = world.layout.pipeline_size
        self._steps: deque[_Step] = deque()
        self._answers: dict[int, tuple[bool, Any]] = {}  # to a call, by rank: whether it is a result, else an error
        self._error: EngineDeadError | None = None
        self._workers = WorkerProcesses(world)

    def execute(self, plan: StepPlan) -> "Future[StepResult]":
        step = _Step(self)
        self._steps.append(step)
        if self._error is None:
            self._workers.plans.write(STEP + _encoder.encode(plan))
        else:
            self._fail_steps(self._error)
        return step

    def call_all(self, method: str, *args: Any) -> list[Any]:
        self._raise_error()
        self._answers = {}
        self._workers.plans.write(CALL + pickle.dumps((method, args)))
        deadline: float | None = None
        while len(self._answers) < len(self._workers) and (deadline is None or time.monotonic() < deadline):
            self.read_replies(None if deadline is None else deadline - time.monotonic())
            self._raise_error()
            if deadline is None and not all(ok for ok, _ in self._answers.values()):
                deadline = time.monotonic() + _OTHERS_SECONDS
        in_order = [self._answers[rank] for rank in sorted(self._answers)]
        for ok, value in in_order:
            if not ok:
                raise value
        return [value for _, value in in_order]

    def check_health(self) -> None:
        self.read_replies(0.0)
        self._raise_error()

    def shutdown(self) -> None:
        self._error = self._error or EngineDeadError("The executor was shut down.")
        self._workers.close()
        self._fail_steps(self._error)

    @property
    def descriptors(self) -> Sequence[int]:
        return [connection.fileno() for connection in self._workers.replies]

    def read_replies(self, timeout: float | None) -> None:
        """Take in what has come, waiting for the first so many seconds; None: as long as it takes."""
        for ready in wait_for(list(self._workers.replies), None if timeout is None else max(0.0, timeout)):
            connection = cast("Connection[Any, Any]", ready)
            try:
                self._take(self._workers.replies[connection], connection.recv_bytes())
            except (EOFError, ConnectionError):
                self._fail("A worker closed its pipe.")
                return

    def _take(self, rank: int, reply: bytes) -> None:
        kind, body = reply[:1], reply[1:]
        if kind == RESULT:
            self._steps.popleft().set_result(_result_decoder.decode(body))
        elif kind == BROKEN:
            self._fail(f"Worker {rank} failed: {body.decode()}")
        else:
            assert kind in (RETURNED, RAISED)
            self._answers[rank] = (kind == RETURNED, pickle.loads(body))

    def _fail(self, message: str) -> None:
        """The first reason stands; what others say who miss one that died is no reason."""
        if self._error is None:
            self._error = EngineDeadError(self._workers.death() or message)
            self._workers.kill()
            self._fail_steps(self._error)

    def _fail_steps(self, error: EngineDeadError) -> None:
        while self._steps:
            self._steps.popleft().set_exception(error)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
