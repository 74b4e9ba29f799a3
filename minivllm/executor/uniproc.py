"""One worker in this very process; `execute` returns when the step is done, or where the device goes on by itself, when it has
begun."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from minivllm.config.engine_config import EngineConfig
from minivllm.executor.base import Executor
from minivllm.messages.step import StepPlan, StepResult
from minivllm.worker.worker import Worker


class UniprocExecutor(Executor):
    def __init__(self, config: EngineConfig):
        self._worker: Worker | None = Worker(config)
        self.max_in_flight = self._worker.max_in_flight

    def execute(self, plan: StepPlan) -> "Future[StepResult]":
        step = _Step()
        try:
            step.finish = self._live_worker().begin(plan)
        except Exception as e:
            step.set_exception(e)
        if self.max_in_flight == 1:
            step.end()
        return step

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


class _Step(Future[StepResult]):
    """Whoever asks for the result waits for the device."""

    finish: Callable[[], StepResult] | None = None

    def end(self) -> None:
        if self.finish is not None and not self.done():
            try:
                self.set_result(self.finish())
            except Exception as e:
                self.set_exception(e)

    def result(self, timeout: float | None = None) -> StepResult:
        self.end()
        return super().result(timeout)
