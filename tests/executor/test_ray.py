"""Workers in a local Ray cluster: the same outputs as of one process, and what happens when one dies."""

import time

import psutil
import pytest
from executor.workers import assert_same, outputs_of
from tiny_llama import write_tiny_llama

from minivllm import LLM, SamplingParams
from minivllm.distributed.groups import Layout
from minivllm.errors import ConfigError, EngineDeadError

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=1 << 27)
    yield
    ray.shutdown()


def test_ranks_follow_the_nodes(cluster):
    from minivllm.executor.ray_placement import by_node, places_on

    nodes = ["c", "a", "b", "a", "c", "b", "b", "a"]
    order = by_node(nodes, first="c")
    assert [nodes[index] for index in order] == ["c", "c", "a", "a", "a", "b", "b", "b"]
    places = places_on(["c", "c", "a", "a"], Layout(2, 2))
    assert [(place.rank, place.tensor_rank, place.local_rank, place.local_size) for place in places] == [
        (0, 0, 0, 2), (1, 1, 1, 2), (2, 0, 0, 2), (3, 1, 1, 2)
    ]  # fmt: skip


def test_outputs_are_those_of_one_process(model, cluster):
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    assert_same(outputs_of(model, distributed_executor_backend="ray", **sizes), outputs_of(model))


def test_a_killed_worker_ends_the_step(model, cluster):
    options = {"distributed_executor_backend": "ray", "tensor_parallel_size": 2, "num_gpu_blocks_override": 64}
    with LLM(str(model), dtype="float32", cpu_threads=1, **options) as llm:
        llm.engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=200, ignore_eos=True))
        llm.engine.step()
        workers = [p for p in psutil.Process().children(recursive=True) if "RayWorker" in " ".join(p.cmdline())]
        assert len(workers) == 2
        workers[1].kill()
        begin = time.monotonic()
        with pytest.raises(EngineDeadError, match="A worker in the Ray cluster failed"):
            while True:
                llm.engine.step()
        assert time.monotonic() - begin < 5


def test_more_workers_than_the_cluster_has_cpus(model, cluster):
    with pytest.raises(ConfigError, match="8 workers need a CPU each, and the Ray cluster has 4: add nodes"):
        LLM(str(model), distributed_executor_backend="ray", tensor_parallel_size=4, pipeline_parallel_size=2)
