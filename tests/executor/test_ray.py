"""Workers in a local Ray cluster: the same outputs as of one process, and what happens when one dies."""

import time

import httpx
import psutil
import pytest
from executor.workers import PROMPTS, assert_same, outputs_of
from real_server import flags_of
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


def test_a_server_whose_two_cores_have_experts_on_two_workers_each(tmp_path, cluster, launch):
    """Over HTTP, in the cluster that is there; steps are short, and blocks too few for all prompts."""
    mixture = write_tiny_llama(tmp_path, experts=4)
    limits = {"max_num_seqs": 6, "max_num_batched_tokens": 16, "num_gpu_blocks_override": 26, "block_size": 4}
    options = {"dtype": "float32", "cpu_threads": 1, "max_model_len": 100, **limits}
    body = {"max_tokens": 20, "ignore_eos": True, "temperature": 0}
    with LLM(str(mixture), **options) as llm:
        outputs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], SamplingParams(**body), use_tqdm=False)
    flags = [*flags_of(options), "-dp", "2", "-tp", "2", "-ep", "--distributed-executor-backend", "ray"]
    with launch(mixture, *flags, env={"RAY_ADDRESS": ray.get_runtime_context().gcs_address}) as server:
        body |= {"prompt": PROMPTS * 2, "return_token_ids": True}
        reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert [choice["token_ids"] for choice in reply["choices"]] == [o.outputs[0].token_ids for o in outputs] * 2
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert server.metric("minivllm:num_preemptions_total") > 0


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
