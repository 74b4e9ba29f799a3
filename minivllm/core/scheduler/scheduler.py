"""The scheduler: `add`, `abort`, `plan` a step, `apply` its result. Called by `core.engine_core`.

One rule, no phases: a request gets tokens until what is computed reaches what is known. Prefill, chunks, decode and
recompute after a preemption are the same thing.
"""

import bisect
import copy
import heapq
import time

from minivllm.config.sections.cache import CacheConfig
from minivllm.config.sections.scheduler import SchedulerConfig
from minivllm.core.grammar.grammar import Grammar
from minivllm.core.kv_cache.manager import KVCacheManager
from minivllm.core.scheduler import preemption, results
from minivllm.core.scheduler.plan_builder import PlanBuilder
from minivllm.core.scheduler.queues import POLICIES, WaitingQueue
from minivllm.core.scheduler.request import OrderKey, Request, Status
from minivllm.core.scheduler.rules import make_rules
from minivllm.core.scheduler.step_budget import StepBudget
from minivllm.core.scheduler.step_costs import StepCosts
from minivllm.messages.output import TokenOutput
from minivllm.messages.request import EngineRequest
from minivllm.messages.stats import RequestState, SchedulerStats
from minivllm.messages.step import SlotResult, StepPlan, StepResult

_MAX_SKIPPED = 64  # waiting requests looked at in a step without being let in
_WATERMARK = 0.01  # share of blocks kept for the running to grow into, else a newcomer would be preempted at once


class Scheduler:
    """Several plans may be in flight; they must be executed, and their results applied, in the order of planning."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        num_blocks: int,
        max_model_len: int,
        costs: StepCosts | None = None,
        num_stages: int = 1,
    ):
        """With `costs`, a step is limited by the time it takes, too. `num_stages`: pipeline stages that so many steps in flight
        are to fill."""
        self.kv_cache = KVCacheManager(num_blocks, cache.block_size, cache.enable_prefix_caching)
        # A sequence that grows beyond the whole pool could never be computed, so the pool is a length limit too.
        self.max_model_len = min(max_model_len, num_blocks * cache.block_size) if num_blocks else max_model_len
        self._config = config
        self._budget = StepBudget(config.max_num_batched_tokens, costs, num_stages)
        if not config.enable_chunked_prefill and config.max_num_batched_tokens < self.max_model_len:
            raise ValueError("without chunked prefill, a step must have room for max_model_len tokens")
        self._order = POLICIES[config.scheduling_policy]
        self._rules = make_rules(config, num_stages)
        self._watermark = int(num_blocks * _WATERMARK)
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue()
        self._running: list[Request] = []  # sorted by order: victims are at the end
        self._free_slots = list(range(config.max_num_seqs))  # a heap: low slots first keeps the worker's rows dense
        self._freed_slots: list[int] = []  # not yet told to the worker
        self._in_flight: dict[int, PlanBuilder] = {}  # by step id
        self._refused: list[TokenOutput] = []
        self._stats = SchedulerStats()

    def add(self, data: EngineRequest, grammar: Grammar | None = None) -> None:
        """Queue a request, whose output is to follow `grammar`. What can never run (refused upstream already) ends with an
        error in the next outputs.
        """
        if data.request_id in self._requests:
            raise ValueError(f"request id {data.request_id!r} is in use")
        num_prompt_tokens = len(data.prompt_token_ids)
        request = Request(
            data=data,
            order=self._order(data),
            max_length=min(self.max_model_len, num_prompt_tokens + (data.sampling_params.max_tokens or 0)),
            blocks=self.kv_cache.open(data.cache_salt),
            tokens=data.prompt_token_ids.copy(),
            grammar=grammar,
        )
        if not 0 < num_prompt_tokens <= self.max_model_len:
            error = f"a prompt of {num_prompt_tokens} tokens cannot be computed: 1 to {self.max_model_len} tokens can"
            self._refused.append(results.failure(request, error))
            return
        self._requests[data.request_id] = request
        self._waiting.push(request)

    def abort(self, request_id: str) -> bool:
        """End a request wherever it is, without an output; False if it is unknown (ended already)."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._finish(request)
        return True

    def plan(self) -> StepPlan | None:
        """The next step, or None if there is nothing to compute now."""
        builder = PlanBuilder(tells_tokens=self._budget.num_stages > 1)
        self._budget.start(self._running, min(len(self._waiting), len(self._free_slots)))
        for rule in self._rules:
            rule.start_step()
        if self._continue_running(builder):
            self._admit_waiting(builder)
        if not builder.scheduled:
            return None
        self._stats.num_steps += 1
        self._stats.num_batched_tokens += builder.work.num_tokens
        plan = builder.build(self._stats.num_steps, self._freed_slots)
        self._freed_slots = []
        self._in_flight[plan.step_id] = builder
        return plan

    def apply(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """Accept what a planned step brought; returns what to send."""
        assert result.step_id == plan.step_id, "a result belongs to another step"
        by_slot = {r.slot: r for r in result.results}
        outputs: list[TokenOutput] = []
        built = self._in_flight.pop(plan.step_id)
        self._budget.learn(built.work, result.seconds)
        for (request, epoch), scheduled in zip(built.members, plan.scheduled, strict=True):
            if request.epoch != epoch:
                continue  # preempted or ended since
            slot_result = by_slot.get(scheduled.slot) or SlotResult(scheduled.slot, [])
            sampled = bool(slot_result.token_ids) or slot_result.pooled is not None
            assert slot_result.error or sampled == scheduled.sample, "sampled without being asked, or not"
            output = results.accept(request, slot_result)
            if output is not None:
                outputs.append(output)
                if output.finish_reason is not None:
                    self._finish(request, failed=output.error is not None)
        return outputs

    def take_refused(self) -> list[TokenOutput]:
        """Outputs of requests that ended without a step."""
        refused, self._refused = self._refused, []
        return refused

    def has_work(self) -> bool:
        return bool(self._requests or self._refused)

    def stats(self) -> SchedulerStats:
        """The figures now; a copy, since receivers keep it."""
        self._stats.num_running = len(self._running)
        self._stats.num_waiting = len(self._waiting)
        self._stats.kv_cache_usage = self.kv_cache.usage
        return copy.copy(self._stats)

    def states(self) -> list[RequestState]:
        """Every request that has not ended."""
        return [self._state(request) for request in self._requests.values()]

    def _state(self, request: Request) -> RequestState:
        running = request.status is Status.RUNNING
        if running:
            reason = None
        elif not self._free_slots:
            reason = "slot"
        else:
            reason = "step_tokens" if self.kv_cache.has_room(request.blocks, len(request.tokens)) else "kv_cache"
        return RequestState(
            request.data.request_id,
            running,
            reason,
            len(request.tokens),
            request.num_computed if running else 0,
            request.num_cached_tokens or 0,
            request.num_preemptions,
            request.scheduled_time,
        )

    def _continue_running(self, builder: PlanBuilder) -> bool:
        """Give the running what they need, taking blocks from the last ones if there are none. False if one was preempted."""
        running = self._running
        num_before = len(running)
        index = 0
        while index < len(running) and not self._budget.is_spent:
            request = running[index]
            index += 1
            num_needed = request.num_needed
            num_tokens = self._limit(request, self._budget.fit(num_needed, request.num_computed))
            if num_tokens == 0:
                continue
            new_block_ids = self._grow(request, request.num_computed + num_tokens)
            if new_block_ids is None:
                break
            self._budget.spend(num_tokens, request.num_computed, is_stream=num_needed == 1)
            self._schedule(builder, request, num_tokens, new_block_ids)
        return len(running) == num_before

    def _grow(self, request: Request, num_tokens: int) -> list[int] | None:
        """Blocks for `num_tokens` tokens, at the cost of the last of the running; None if it was itself the last."""
        while (new_block_ids := self.kv_cache.allocate(request.blocks, num_tokens)) is None:
            victim = preemption.choose_victim(self._running)
            self._preempt(victim)
            if victim is request:
                return None
        return new_block_ids

    def _admit_waiting(self, builder: PlanBuilder) -> None:
        """Let waiting requests in, in order, until one finds no budget, slot or blocks. Skipped ones go back."""
        skipped: list[Request] = []
        unfinished = [r for r in self._running if r.num_computed < len(r.tokens)]
        while self._free_slots and len(skipped) < _MAX_SKIPPED and (request := self._waiting.peek()) is not None:
            if self._budget.is_spent:
                break
            cached = self.kv_cache.match_prefix(request.blocks, request.tokens, request.max_cached_tokens)
            num_cached_tokens = len(cached) * self.kv_cache.block_size
            num_needed = len(request.tokens) - num_cached_tokens
            fitting = self._budget.fit(num_needed, num_cached_tokens)
            if fitting == 0 or (fitting < num_needed and not self._config.enable_chunked_prefill):
                break
            num_tokens = self._limit(request, fitting)
            if num_tokens == 0 or self._is_coming(request, len(cached), unfinished):
                skipped.append(self._waiting.pop())
                continue
            # Blocks for all known tokens at once: a prompt that is let in must not be stopped half way.
            spare = self._watermark if self._running else 0
            if self.kv_cache.allocate(request.blocks, len(request.tokens), cached, spare) is None:
                break
            self._waiting.pop()
            self._budget.spend(num_tokens, num_cached_tokens, is_stream=False)
            self._enter(builder, request, num_cached_tokens)
            self._schedule(builder, request, num_tokens, [])
            if request.num_computed < len(request.tokens):
                unfinished.append(request)
        for request in skipped:
            self._waiting.push(request)

    def _is_coming(self, request: Request, index: int, unfinished: list[Request]) -> bool:
        """Whether one of `unfinished` will compute block `index` of the request anyway: then it is worth waiting for."""
        end = (index + 1) * self.kv_cache.block_size
        return end <= request.max_cached_tokens and any(
            other.num_computed < end <= len(other.tokens)
            and self.kv_cache.is_same_block(index, request.blocks, request.tokens, other.blocks, other.tokens)
            for other in unfinished
        )

    def _enter(self, builder: PlanBuilder, request: Request, num_cached_tokens: int) -> None:
        if request.num_cached_tokens is None:  # blocks it finds again after a preemption are its own, and no merit
            request.num_cached_tokens = num_cached_tokens
            request.scheduled_time = time.monotonic()
            if self.kv_cache.enable_prefix_caching and not request.wants_all_hidden:
                self._stats.prefix_cache_queries += request.num_prompt_tokens
                self._stats.prefix_cache_hits += num_cached_tokens
        request.status = Status.RUNNING
        request.slot = heapq.heappop(self._free_slots)
        request.num_computed = num_cached_tokens
        bisect.insort(self._running, request, key=_order)
        builder.enter(request)

    def _schedule(self, builder: PlanBuilder, request: Request, num_tokens: int, new_block_ids: list[int]) -> None:
        for rule in self._rules:
            rule.accept(request, num_tokens)
        builder.schedule(request, num_tokens, new_block_ids)
        # Named before they are computed: a step writes all its keys and values before it reads any, layer by layer, and
        # steps run in order, so whoever shares a block from now on finds it filled.
        self.kv_cache.commit(request.blocks, request.tokens, request.num_computed)

    def _limit(self, request: Request, num_tokens: int) -> int:
        for rule in self._rules:
            num_tokens = rule.limit(request, num_tokens)
        return num_tokens

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self._release_slot(request)
        preemption.reset(request, self.kv_cache)
        self._waiting.push(request)
        self._stats.num_preemptions += 1

    def _finish(self, request: Request, failed: bool = False) -> None:
        if request.status is Status.RUNNING:
            self._running.remove(request)
            self._release_slot(request)
            if not failed:
                self.kv_cache.commit(request.blocks, request.tokens, request.num_computed)
            self.kv_cache.free(request.blocks, forget=failed)
        else:
            self._waiting.remove(request)
        request.status = Status.FINISHED
        request.epoch += 1
        del self._requests[request.data.request_id]

    def _release_slot(self, request: Request) -> None:
        self._freed_slots.append(request.slot)
        heapq.heappush(self._free_slots, request.slot)


def _order(request: Request) -> OrderKey:
    return request.order
