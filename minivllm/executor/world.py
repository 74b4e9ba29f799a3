"""`World`: the workers of one engine core, as all executors of several see them."""

import dataclasses
import os
import random
import socket
from dataclasses import dataclass

from minivllm.config.engine_config import EngineConfig
from minivllm.distributed.groups import Layout


@dataclass(frozen=True, slots=True)
class World:
    config: EngineConfig  # the same for all workers
    layout: Layout

    @property
    def speaker(self) -> int:
        """Rank of the worker that samples, and so has the results of steps."""
        return self.layout.world_size - self.layout.tensor_size


def make_world(config: EngineConfig) -> World:
    if config.model.seed is None:  # all that sample must draw the same numbers
        model = dataclasses.replace(config.model, seed=random.SystemRandom().getrandbits(31))
        config = dataclasses.replace(config, model=model)
    parallel = config.parallel
    return World(config, Layout(parallel.tensor_parallel_size, parallel.pipeline_parallel_size))


def local_rendezvous(config: EngineConfig) -> str:
    """Where workers of this machine find each other: a name that nobody else has, for GPUs an address."""
    if config.device.device == "cpu":
        return f"minivllm-{os.urandom(8).hex()}"
    return f"tcp://127.0.0.1:{free_port()}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
