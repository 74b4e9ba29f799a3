"""`Executor`: what the core asks of its workers, wherever they run."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from minivllm.messages.step import StepPlan, StepResult


class Executor(ABC):
    """Steps are executed in the order in which they are given. After an exception from a step the executor is done for."""

    max_in_flight: int = 1  # steps worth giving before the first has ended

    @abstractmethod
    def execute(self, plan: StepPlan) -> "Future[StepResult]":
        """Start one step. A failure is raised by the future."""

    @abstractmethod
    def call_all(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every worker and return their results in rank order."""

    @abstractmethod
    def check_health(self) -> None:
        """Raise if a worker is gone or stuck."""

    @property
    def descriptors(self) -> Sequence[int]:
        """Of files that become readable when a worker dies: `check_health` then says so."""
        return ()

    @abstractmethod
    def shutdown(self) -> None:
        """End the workers and free what they hold. May be called twice."""

    def abandon(self) -> None:
        """The same, where something has failed."""
        self.shutdown()
