"""`EngineCore`: requests in, token outputs out. Driven by `core.process`, or in-process by the engine's client."""

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from minivllm.config.engine_config import EngineConfig
from minivllm.core import remote
from minivllm.core.grammar.manager import GrammarManager
from minivllm.core.grammar.waiting_room import WaitingRoom
from minivllm.core.kv_transfer.transfers import KVTransfers
from minivllm.core.scheduler.scheduler import Scheduler
from minivllm.core.scheduler.step_costs import StepCosts
from minivllm.executor.base import Executor
from minivllm.messages.output import TokenOutput, TokenOutputs
from minivllm.messages.request import EngineRequest
from minivllm.messages.stats import RequestState
from minivllm.messages.step import StepPlan, StepResult

if TYPE_CHECKING:
    from minivllm.core.kv_transfer.exchange import Exchange


class EngineCore:
    """Not thread-safe. `depth` steps are kept in flight, so that planning and execution overlap where the executor can."""

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        num_blocks: int,
        costs: StepCosts | None = None,
        depth: int | None = None,
        exchange: "Exchange | None" = None,
    ):
        """`costs`: how long steps take, if they are to be limited by that. `exchange`: of blocks with other engines."""
        self.executor = executor
        stages = config.parallel.pipeline_parallel_size
        self.scheduler = Scheduler(config.scheduler, config.cache, num_blocks, config.model.max_model_len, costs, stages)
        self.grammars = GrammarManager()
        self._waiting_room = WaitingRoom(self.grammars)
        self._transfers = None if exchange is None else KVTransfers(exchange, self.scheduler.kv_cache, executor)
        self._depth = depth or executor.max_in_flight
        self._in_flight: deque[tuple[StepPlan, Future[StepResult]]] = deque()
        self._stats_due = False  # something changed since the last stats were sent

    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Queue requests; ValueError if an id is in use."""
        for request in requests:
            if self._transfers is None or not self._transfers.hold(request):
                self._queue(request)
        self._stats_due = True

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests without a further output. Unknown ids ended already and are fine."""
        for request_id in request_ids:
            fetching = self._transfers is not None and self._transfers.abort(request_id)
            if fetching or self._waiting_room.abort(request_id) or self.scheduler.abort(request_id):
                self._stats_due = True

    def step(self) -> TokenOutputs | None:
        """Plan and start a step if one more may be in flight, else wait for the oldest one and return what it brought.

        None if there is nothing to tell. An exception means that the executor failed and this core is finished.
        """
        if self._transfers:
            for request in self._transfers.take():
                self._queue(request)
        outputs: list[TokenOutput] = self._take_compiled() if self._waiting_room else []
        if len(self._in_flight) < self._depth:
            plan = self.scheduler.plan()
            if plan is not None:
                self._in_flight.append((plan, self.executor.execute(plan)))
                if len(self._in_flight) < self._depth and not self._in_flight[0][1].done() and not outputs:
                    return None
            elif not self._in_flight and not outputs:
                for room in (self._waiting_room, self._transfers):
                    if room:
                        room.wait()
        if self._in_flight:
            plan, future = self._in_flight.popleft()
            outputs += self.scheduler.apply(plan, future.result())
            self._stats_due = True
        outputs += self.scheduler.take_refused()
        if self._transfers is not None:
            self._transfers.offer(outputs)
        if not outputs and not self._stats_due:
            return None
        self._stats_due = False
        return TokenOutputs(outputs, self.scheduler.stats(), time.monotonic())

    def has_work(self) -> bool:
        """Whether `step` should be called; while False the caller may sleep until the next `add`."""
        return self._stats_due or bool(self._in_flight or self._waiting_room or self._transfers) or self.scheduler.has_work()

    def states(self) -> list[RequestState]:
        """Every request that has not ended."""
        fetching = [] if self._transfers is None else self._transfers.states()
        return fetching + self._waiting_room.states() + self.scheduler.states()

    def call(self, method: str, args: list[Any]) -> object:
        """Call a `@remote` method by name; ClientError if there is none."""
        return remote.call(self, method, args)

    def shutdown(self) -> None:
        """Free the workers. May be called twice."""
        self.grammars.shutdown()
        if self._transfers is not None:
            self._transfers.close()
        self.executor.shutdown()

    def _queue(self, request: EngineRequest) -> None:
        form = request.sampling_params.structured_outputs
        if form is None:
            self.scheduler.add(request)
        else:
            self._waiting_room.add(request, form)

    def _take_compiled(self) -> list[TokenOutput]:
        """Hand requests whose grammar is there to the scheduler; the outputs of those that have none."""
        ready, failed = self._waiting_room.take()
        for request, grammar in ready:
            self.scheduler.add(request, grammar)
        return failed
