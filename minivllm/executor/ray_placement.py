"""Where Ray runs the workers of one engine core: resources for all of them at once, and ranks in the order of the nodes."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from minivllm.distributed.groups import Layout, Place
from minivllm.errors import ConfigError

_WAIT_SECONDS = 60.0  # for others to give back what they use


def reserve(num_workers: int, device: str) -> Any:
    """A placement group with a bundle for each worker, on as few nodes as may be. ConfigError if the cluster has too little."""
    kind = "GPU" if device == "cuda" else "CPU"
    in_all = int(ray.cluster_resources().get(kind, 0))
    if in_all < num_workers:
        raise ConfigError(
            f"{num_workers} workers need a {kind} each, and the Ray cluster has {in_all}: add nodes, or lower "
            "--tensor-parallel-size or --pipeline-parallel-size.",
            param="tensor_parallel_size",
        )
    group = placement_group([{kind: 1}] * num_workers, strategy="PACK")
    if not group.wait(_WAIT_SECONDS):
        remove_placement_group(group)
        raise ConfigError(
            f"{num_workers} workers need a {kind} each; the Ray cluster has {in_all}, but too few were free for "
            f"{_WAIT_SECONDS:.0f} s.",
            param="distributed_executor_backend",
        )
    return group


def by_node(nodes: Sequence[str], first: str) -> list[int]:
    """Workers (indices of `nodes`, where they run) in the order of their ranks: node by node, so that ranks that talk most are
    neighbours; those with more workers come before others, and node `first` before all.
    """
    sizes = Counter(nodes)
    return sorted(range(len(nodes)), key=lambda index: (nodes[index] != first, -sizes[nodes[index]], nodes[index], index))


def places_on(nodes: Sequence[str], layout: Layout) -> list[Place]:
    """The place of each rank, which runs on nodes[rank]."""
    sizes, seen, places = Counter(nodes), Counter[str](), []
    for rank, node in enumerate(nodes):
        places.append(dataclasses.replace(layout.place(rank), local_rank=seen[node], local_size=sizes[node]))
        seen[node] += 1
    return places
