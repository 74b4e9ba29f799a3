"""Workers in processes: of this machine, which read plans in shared memory and reply by pipes, and of other nodes, by TCP."""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any

from minivllm.config.engine_config import EngineConfig
from minivllm.errors import EngineDeadError
from minivllm.executor.base import Executor
from minivllm.executor.launch import ANSWER, BROKEN, CALL, DEAD, RESULT, STEP, Call
from minivllm.executor.nodes import Nodes
from minivllm.executor.replies import (
    OTHERS_SECONDS,
    Answer,
    PolledStep,
    all_well,
    decode_answer,
    decode_result,
    encode,
    results_of,
)
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
        self._size = world.layout.world_size
        self._steps: deque[_Step] = deque()
        self._num_calls = 0
        self._answers: dict[int, Answer] = {}  # to the last call, by rank
        self._error: EngineDeadError | None = None
        self._nodes = Nodes(world.config)
        try:
            self._workers = WorkerProcesses(world)
        except BaseException:
            self._nodes.close()
            raise

    def execute(self, plan: StepPlan) -> "Future[StepResult]":
        step = _Step(self)
        self._steps.append(step)
        if self._error is None:
            self._send(STEP + encode(plan))
        else:
            self._fail_steps(self._error)
        return step

    def call_all(self, method: str, *args: Any) -> list[Any]:
        self._raise_error()
        self._answers = {}
        self._num_calls += 1
        self._send(CALL + encode(Call(self._num_calls, method, args)))
        deadline: float | None = None
        while len(self._answers) < self._size and (deadline is None or time.monotonic() < deadline):
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
        self._nodes.dismiss()
        self._workers.close()
        self._fail_steps(self._error)

    def abandon(self) -> None:
        self._nodes.close()
        self.shutdown()

    @property
    def descriptors(self) -> Sequence[int]:
        return [connection.fileno() for connection in (*self._workers.replies, *self._nodes.names)]

    def read_replies(self, timeout: float | None) -> None:
        """Take in what has come, waiting for the first so many seconds; None: as long as it takes."""
        sources = [*self._workers.replies, *self._nodes.names]
        for source in wait_for(sources, None if timeout is None else max(0.0, timeout)):
            if self._error is not None:  # another's, which has ended all steps
                return
            assert isinstance(source, Connection)
            try:
                self._take(source.recv_bytes())
            except (EOFError, OSError):
                if source in self._nodes.names:
                    self._fail(f"{self._nodes.names[source]} has gone.", is_cause=True)
                else:
                    self._fail("A worker closed its pipe.")
                return

    def _send(self, message: bytes) -> None:
        """To all workers. If a node is gone, its replies end, too."""
        self._nodes.send(message)
        self._workers.plans.write(message)

    def _take(self, reply: bytes) -> None:
        kind, body = reply[:1], reply[1:]
        if kind == RESULT:
            self._steps.popleft().set_result(decode_result(body))
        elif kind in (BROKEN, DEAD):
            self._fail(body.decode(), is_cause=kind == DEAD)
        else:
            assert kind == ANSWER
            answer = decode_answer(body)
            if answer.call == self._num_calls:  # else it comes too late: another rank's error was raised
                self._answers[answer.rank] = answer

    def _fail(self, message: str, is_cause: bool = False) -> None:
        """The first reason stands; what others say who miss one that died is no reason."""
        if self._error is None:
            cause = message if is_cause else self._workers.death() or self._nodes.death()
            self._error = EngineDeadError(cause or message)
            self._workers.kill()
            self._nodes.close()
            self._fail_steps(self._error)

    def _fail_steps(self, error: EngineDeadError) -> None:
        while self._steps:
            self._steps.popleft().set_exception(error)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
