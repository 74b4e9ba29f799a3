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

    @property
    def local_ranks(self) -> range:
        """Of the workers on this machine, unless Ray says where they are."""
        size = self.layout.world_size // self.layout.num_machines
        first = self.config.parallel.node_rank * size
        return range(first, first + size)


def make_world(config: EngineConfig) -> World:
    if config.model.seed is None:  # all that sample must draw the same numbers
        model = dataclasses.replace(config.model, seed=random.SystemRandom().getrandbits(31))
        config = dataclasses.replace(config, model=model)
    parallel = config.parallel
    return World(config, Layout(parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.nnodes))


def rendezvous_of(config: EngineConfig) -> str:
    """For `distributed.communicator.connect`: for workers of one machine a name that nobody else has, for GPUs an address;
    for those of several nodes both.
    """
    parallel, name = config.parallel, f"minivllm-{os.urandom(8).hex()}"
    if parallel.nnodes > 1:
        host = f"[{parallel.master_addr}]" if ":" in parallel.master_addr else parallel.master_addr
        return f"tcp://{host}:{parallel.master_port}#{name}"
    return name if config.device.device == "cpu" else f"tcp://127.0.0.1:{free_port()}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
