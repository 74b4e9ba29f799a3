"""How many workers share a model, and how they run. Part of `EngineConfig`."""

from dataclasses import dataclass

from minivllm.config.option import option


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Parallelism"""

    tensor_parallel_size: int = option(1, "Workers that share each layer.", low=1, short="-tp")
    pipeline_parallel_size: int = option(1, "Stages, each with a share of the layers.", low=1, short="-pp")
    data_parallel_size: int = option(
        1, "Engine cores with a whole model each, behind one API; each has workers of the two sizes above.", low=1, short="-dp"
    )
    enable_expert_parallel: bool = option(
        False, "Divide a mixture's experts among the workers instead of each expert.", short="-ep"
    )
    distributed_executor_backend: str | None = option(
        None,
        "Where workers run: in the core (uni, one worker), in processes of this machine (mp), or in a Ray cluster (ray). "
        "Default: uni for one worker, else mp.",
        choices=("uni", "mp", "ray"),
    )
    nnodes: int = option(
        1, "Machines that share the workers equally, without Ray (mp): the same command on each, but for what follows.", low=1
    )
    node_rank: int = option(0, "Which of them this is. Node 0 has the API, the others are --headless.", low=0)
    headless: bool = option(False, "Serve no API: start this node's workers for node 0.")
    master_addr: str = option(
        "127.0.0.1",
        "Address of node 0, where the others find it. It listens at no other; only the nodes should be able to reach it.",
        metavar="HOST",
    )
    master_port: int = option(29501, "Port at that address.", low=1, high=65535)
    distributed_timeout_seconds: int = option(600, "Seconds that nodes wait until all are there.", low=1, metavar="N")

    data_parallel_rank: int = 0  # which of the cores this is
    num_api_processes: int = 1  # that each core serves
