"""Workers as actors of a Ray cluster, on one machine or on several."""

import dataclasses
import signal
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import ray
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from minivllm.config.engine_config import EngineConfig
from minivllm.config.env import for_workers
from minivllm.errors import EngineDeadError
from minivllm.executor.base import Executor
from minivllm.executor.ray_keeper import RayKeeper
from minivllm.executor.ray_placement import by_node, places_on, reserve
from minivllm.executor.ray_worker import RayWorker
from minivllm.executor.replies import OTHERS_SECONDS, Answer, PolledStep, all_well, decode_result, encode, results_of
from minivllm.executor.world import World, make_world, rendezvous_of
from minivllm.messages.step import StepPlan, StepResult
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)


class _Step(PolledStep):
    def __init__(self, executor: "RayExecutor", replies: list[Any]):
        """replies: of all workers, by rank."""
        super().__init__()
        self._executor = executor
        self._replies = replies
        self._speaks = replies[executor.speaker]

    def look(self, timeout: float | None) -> None:
        """A worker that dies fails its reply, and the others may wait for it for long."""
        ready, self._replies = ray.wait(self._replies, num_returns=1, timeout=timeout)
        try:
            for reply in ready:
                data = ray.get(reply)
                if reply == self._speaks:
                    self.set_result(decode_result(data))
        except ray.exceptions.RayError as e:
            self.set_exception(self._executor.fail(e))


class RayExecutor(Executor):
    def __init__(self, config: EngineConfig):
        world = make_world(config)
        self.max_in_flight = world.layout.pipeline_size
        self.speaker = world.speaker
        self._error: EngineDeadError | None = None
        self._actors: list[Any] = []
        self._lines: list[socket.socket] = []  # from each worker, which never says anything: they end with it
        self._group: Any = None
        self._keeper: RayKeeper | None = None
        self._is_own_cluster = not ray.is_initialized()
        if self._is_own_cluster:
            handler = signal.getsignal(signal.SIGTERM)
            ray.init(include_dashboard=False)  # the cluster that RAY_ADDRESS names, the one that runs here, or its own
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray has taken it
        try:
            self._group = reserve(world.layout.world_size, config.device.device)
            self._start(world)
        except BaseException:
            self.shutdown()
            raise

    def execute(self, plan: StepPlan) -> "Future[StepResult]":
        if self._error is not None:
            failed: Future[StepResult] = Future()
            failed.set_exception(self._error)
            return failed
        data = encode(plan)
        return _Step(self, [actor.execute.remote(data) for actor in self._actors])

    def call_all(self, method: str, *args: Any) -> list[Any]:
        self._raise_error()
        calls = {actor.call.remote(method, args): rank for rank, actor in enumerate(self._actors)}
        waiting, timeout = list(calls), None
        answers: dict[int, Answer] = {}
        while waiting and (timeout is None or timeout > 0):
            begin = time.monotonic()
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=timeout)
            timeout = None if timeout is None else timeout - (time.monotonic() - begin)
            for reply in ready:
                answers[calls[reply]] = self._get(reply)
            if timeout is None and not all_well(answers):
                timeout = OTHERS_SECONDS
        return results_of(answers)

    def check_health(self) -> None:
        self.call_all("check_health")

    @property
    def descriptors(self) -> Sequence[int]:
        return [line.fileno() for line in self._lines]

    def shutdown(self) -> None:
        self._error = self._error or EngineDeadError("The executor was shut down.")
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        for line in self._lines:
            line.close()
        self._lines = []
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        if self._is_own_cluster:
            self._is_own_cluster = False
            ray.shutdown()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def fail(self, error: Exception) -> EngineDeadError:
        """The first reason stands. The others might wait for the one that is gone."""
        if self._error is None:
            logger.error("a worker failed: %s", error)
            first = str(error).strip().partition("\n")[0]
            self._error = EngineDeadError(f"A worker in the Ray cluster failed: {first}")
            for actor in self._actors:
                ray.kill(actor)
        return self._error

    def _start(self, world: World) -> None:
        gpus = world.config.device.device == "cuda"
        bundles = [PlacementGroupSchedulingStrategy(self._group, index) for index in range(world.layout.world_size)]
        each: Any = ray.remote(num_cpus=0 if gpus else 1, num_gpus=1 if gpus else 0)(RayWorker)
        actors = [each.options(scheduling_strategy=bundle).remote() for bundle in bundles]
        found = self._get_all([actor.where.remote() for actor in actors])
        if self._is_own_cluster:
            self._keeper = RayKeeper()
        order = by_node([node for node, _, _ in found], ray.get_runtime_context().get_node_id())
        self._actors = [actors[index] for index in order]
        nodes = [found[index][0] for index in order]
        _, address, port = found[order[0]]
        rendezvous = f"tcp://{address}:{port}"
        if len(set(nodes)) == 1 and world.layout.pipeline_size == 1:  # then nothing has to go through sockets
            rendezvous = rendezvous_of(world.config)
        config, places = world.config, places_on(nodes, world.layout)
        if gpus:  # each sees but its own
            parallel = dataclasses.replace(config.parallel, data_parallel_rank=0, data_parallel_size=1)
            config = dataclasses.replace(config, parallel=parallel)
            places = [dataclasses.replace(place, local_rank=0, local_size=1) for place in places]
        encoded, variables = msgspec.msgpack.encode(config), for_workers()
        with socket.create_server((ray.util.get_node_ip_address(), 0), backlog=len(places)) as server:
            starts = [
                actor.start.remote(encoded, place, rendezvous, variables, server.getsockname())
                for actor, place in zip(self._actors, places, strict=True)
            ]
            self._get_all(starts)
            self._lines = [server.accept()[0] for _ in places]
        logger.info("%d workers on %d nodes of the Ray cluster", len(nodes), len(set(nodes)))

    def _get(self, reply: Any) -> Any:
        try:
            return ray.get(reply)
        except ray.exceptions.RayError as e:
            raise self.fail(e) from e

    def _get_all(self, replies: list[Any]) -> list[Any]:
        return [self._get(reply) for reply in replies]

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
