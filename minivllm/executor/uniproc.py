"""One worker in this very process; `execute` returns when the step is done."""

from concurrent.futures import Future
from typing import Any

from minivllm.config.engine_config import EngineConfig
from minivllm.executor.base import Executor
from minivllm.messages.step import StepPlan, StepResult
from minivllm.worker.worker import Worker


class UniprocExecutor(Executor):
    def __init__(self, config: EngineConfig):
        self._worker: Worker | None = Worker(config)

    def execute(self, plan: StepPlan) -> "Future[StepResult]":
        future: Future[StepResult] = Future()
        try:
            future.set_result(self._live_worker().execute(plan))
        except Exception as e:
            future.set_exception(e)
        return future

    def call_all(self, method: str, *args: Any) -> list[Any]:
        return [getattr(self._live_worker(), method)(*args)]

    def check_health(self) -> None:
        self._live_worker().check_health()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None

    def _live_worker(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("the executor was shut down")
        return self._worker
