"""`RayWorker`: the actor around a worker in a Ray cluster."""

import socket
from typing import Any

import msgspec
import ray

from minivllm.config.engine_config import EngineConfig
from minivllm.config.env import adopt, logging_level
from minivllm.distributed.groups import Place
from minivllm.errors import MinivllmError, one_line
from minivllm.executor.world import free_port
from minivllm.messages.step import StepPlan
from minivllm.utils.logging import get_logger, set_level

_encoder = msgspec.msgpack.Encoder()
_plan_decoder = msgspec.msgpack.Decoder(StepPlan)


class RayWorker:
    """Calls come one after the other, in the order in which the executor made them."""

    def where(self) -> tuple[str, str, int]:
        """Node, its address, and a port that is free there."""
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), free_port()

    def start(
        self, config: bytes, place: Place, rendezvous: str, speaks: bool, variables: dict[str, str], executor: tuple[str, int]
    ) -> None:
        """Once, before the calls below. `variables`: of the environment of the core's process. `executor`: where it listens."""
        self._line = socket.create_connection(executor)  # tells it by its end that this process is gone
        adopt(variables)
        from minivllm.worker.worker import Worker  # torch reads some of the variables

        set_level("WARNING" if place.rank > 0 else logging_level())  # one speaks for all
        self._worker = Worker(msgspec.msgpack.decode(config, type=EngineConfig), place, rendezvous)
        self._speaks = speaks

    def call(self, method: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Whether it is a result, else an error, and which."""
        try:
            return True, getattr(self._worker, method)(*args)
        except MinivllmError as e:
            return False, e
        except Exception as e:
            get_logger(__name__).exception("%s failed", method)
            return False, RuntimeError(one_line(e))

    def execute(self, plan: bytes) -> bytes:
        """The result of the step, if this is the one that speaks."""
        result = self._worker.execute(_plan_decoder.decode(plan))
        return _encoder.encode(result) if self._speaks else b""
