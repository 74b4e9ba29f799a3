"""`RayWorker`: the actor around a worker in a Ray cluster."""

import socket
from typing import Any

import msgspec
import ray

from minivllm.config.engine_config import EngineConfig
from minivllm.config.env import adopt, logging_level
from minivllm.distributed.groups import Place
from minivllm.executor.replies import Answer, answer, decode_plan, encode
from minivllm.executor.world import free_port
from minivllm.utils.logging import only_warnings, set_level


class RayWorker:
    """Calls come one after the other, in the order in which the executor made them."""

    def where(self) -> tuple[str, str, int]:
        """Node, its address, and a port that is free there."""
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), free_port()

    def start(self, config: bytes, place: Place, rendezvous: str, variables: dict[str, str], executor: tuple[str, int]) -> None:
        """Once, before the calls below. `variables`: of the environment of the core's process. `executor`: where it listens."""
        self._line = socket.create_connection(executor)  # tells it by its end that this process is gone
        adopt(variables)
        from minivllm.worker.worker import Worker  # torch reads some of the variables

        set_level(logging_level())
        if place.rank > 0:  # one speaks for all
            only_warnings()
        self._worker = Worker(msgspec.msgpack.decode(config, type=EngineConfig), place, rendezvous)
        self._rank, self._speaks = place.rank, place.speaks

    def call(self, method: str, args: tuple[Any, ...]) -> Answer:
        return answer(self._worker, self._rank, method, args)

    def execute(self, plan: bytes) -> bytes:
        """The result of the step, if this is the one that speaks."""
        result = self._worker.execute(decode_plan(plan))
        return encode(result) if self._speaks else b""
