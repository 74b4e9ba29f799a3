"""Workers in processes of this machine: plans go to all of them through shared memory, replies come back by pipes."""

import pickle
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any, cast

from minivllm.config.engine_config import EngineConfig
from minivllm.errors import EngineDeadError
from minivllm.executor.base import Executor
from minivllm.executor.launch import ANSWER, BROKEN, CALL, RESULT, STEP
from minivllm.executor.replies import OTHERS_SECONDS, Answer, PolledStep, all_well, decode_result, encode, results_of
from minivllm.executor.worker_processes import WorkerProcesses
from minivllm.executor.world import make_world
from minivllm.messages.step import StepPlan, StepResult


class _Step(PolledStep):
    def __init__(self, executor: "MultiprocExecutor"):
        super().__init__()
        self._executor = executor

    def look(self, timeout: float | None) -> None:
        self._executor.read_replies(timeout)


class MultiprocExecutor(Executor):
    def __init__(self, config: EngineConfig):
        world = make_world(config)
        self.max_in_flight = world.layout.pipeline_size
        self._steps: deque[_Step] = deque()
        self._num_calls = 0
        self._answers: dict[int, Answer] = {}  # to the last call, by rank
        self._error: EngineDeadError | None = None
        self._workers = WorkerProcesses(world)

    def execute(self, plan: StepPlan) -> "Future[StepResult]":
        step = _Step(self)
        self._steps.append(step)
        if self._error is None:
            self._workers.plans.write(STEP + encode(plan))
        else:
            self._fail_steps(self._error)
        return step

    def call_all(self, method: str, *args: Any) -> list[Any]:
        self._raise_error()
        self._answers = {}
        self._num_calls += 1
        self._workers.plans.write(CALL + pickle.dumps((self._num_calls, method, args)))
        deadline: float | None = None
        while len(self._answers) < len(self._workers) and (deadline is None or time.monotonic() < deadline):
            self.read_replies(None if deadline is None else deadline - time.monotonic())
            self._raise_error()
            if deadline is None and not all_well(self._answers):
                deadline = time.monotonic() + OTHERS_SECONDS
        return results_of(self._answers)

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
            if self._error is not None:  # another's, which has ended all steps
                return
            connection = cast("Connection[Any, Any]", ready)
            try:
                self._take(self._workers.replies[connection], connection.recv_bytes())
            except (EOFError, ConnectionError):
                self._fail("A worker closed its pipe.")
                return

    def _take(self, rank: int, reply: bytes) -> None:
        kind, body = reply[:1], reply[1:]
        if kind == RESULT:
            self._steps.popleft().set_result(decode_result(body))
        elif kind == BROKEN:
            self._fail(f"Worker {rank} failed: {body.decode()}")
        else:
            assert kind == ANSWER
            number, answer = pickle.loads(body)
            if number == self._num_calls:  # else it comes too late: another rank's error was raised
                self._answers[rank] = answer

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
