"""Where requests wait, and in which order: one queue, whose policy is only the key it sorts by."""

import heapq
import itertools
from collections.abc import Callable

from minivllm.core.scheduler.request import OrderKey, Request
from minivllm.messages.request import BACKGROUND_PRIORITY, EngineRequest

_arrivals = itertools.count()


def fcfs(request: EngineRequest) -> OrderKey:
    """First come, first served. The key is kept for life, so a preempted request comes back before all that never ran."""
    return (int(request.priority >= BACKGROUND_PRIORITY), 0.0, next(_arrivals))


def priority(request: EngineRequest) -> OrderKey:
    """Lower `priority` first, then earlier arrival."""
    return (request.priority, request.arrival_time, next(_arrivals))


POLICIES: dict[str, Callable[[EngineRequest], OrderKey]] = {"fcfs": fcfs, "priority": priority}


class WaitingQueue:
    """A heap; removed requests leave it when they reach the top."""

    __slots__ = ("_heap", "_present")

    def __init__(self) -> None:
        self._heap: list[tuple[OrderKey, Request]] = []
        self._present: set[OrderKey] = set()

    def __len__(self) -> int:
        return len(self._present)

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.order, request))
        self._present.add(request.order)

    def peek(self) -> Request | None:
        """The one that comes next."""
        while self._heap and self._heap[0][0] not in self._present:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Request:
        request = self.peek()
        assert request is not None, "pop from an empty queue"
        heapq.heappop(self._heap)
        self._present.remove(request.order)
        return request

    def remove(self, request: Request) -> None:
        self._present.remove(request.order)
