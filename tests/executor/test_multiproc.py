"""Workers in processes: the same outputs as of one, errors that reach the user, and nothing left when any process dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from executor.workers import assert_same, outputs_of
from tiny_llama import write_tiny_llama

from minivllm import LLM, SamplingParams
from minivllm.errors import ConfigError, EngineDeadError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def others() -> Iterator[list[psutil.Process]]:
    """Processes that are none of ours: servers of other tests. Nothing but them is left."""
    files, before = len(os.listdir("/proc/self/fd")), psutil.Process().children()
    yield before
    assert [child for child in psutil.Process().children() if child not in before] == []
    assert len(os.listdir("/proc/self/fd")) <= files


def test_outputs_are_those_of_one_process(model):
    expected = outputs_of(model)
    for sizes in ({"tensor_parallel_size": 2}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}):
        assert_same(outputs_of(model, **sizes), expected)


def test_experts_of_two_workers(tmp_path):
    mixture = write_tiny_llama(tmp_path, experts=4)
    assert_same(outputs_of(mixture, tensor_parallel_size=2, enable_expert_parallel=True), outputs_of(mixture))


def test_stages_with_a_tied_head(tmp_path):
    """The table of tokens is on the first and on the last stage; the one between has neither ids nor logits."""
    folder = write_tiny_llama(tmp_path, tied=True)
    assert_same(outputs_of(folder, pipeline_parallel_size=3), outputs_of(folder))


def test_what_a_worker_refuses_is_said_in_one_line(model, tmp_path):
    for file in model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(
        (model / "config.json").read_text().replace('"intermediate_size": 64', '"intermediate_size": 68')
    )
    with pytest.raises(ConfigError, match=r"mlp\.gate_proj\.weight has the shape") as caught:
        LLM(str(tmp_path), dtype="float32", cpu_threads=1, distributed_executor_backend="mp")
    assert "\n" not in caught.value.message


def test_a_killed_worker_ends_the_step(model, others):
    llm = LLM(str(model), dtype="float32", cpu_threads=1, num_gpu_blocks_override=64, pipeline_parallel_size=2)
    llm.engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=90, ignore_eos=True))
    llm.engine.step()
    workers = [child for child in psutil.Process().children() if child not in others]
    workers[1].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(EngineDeadError, match=rf"Worker 1 \(process {workers[1].pid}\) was killed by signal 9."):
        while True:
            llm.engine.step()
    assert time.monotonic() - begin < 5
    with pytest.raises(EngineDeadError):
        llm.engine.call("check_health")
    llm.shutdown()
    llm.shutdown()


PARENT = """
import sys
from minivllm import LLM, SamplingParams
llm = LLM(sys.argv[1], dtype="float32", cpu_threads=1, num_gpu_blocks_override=64, pipeline_parallel_size=2)
print("ready", flush=True)
while True:
    llm.generate([[1, 2, 3]] * 4, SamplingParams(max_tokens=50, ignore_eos=True), use_tqdm=False)
"""


def test_workers_go_with_their_parent(model):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(model)], stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
    workers = psutil.Process(parent.pid).children()
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert psutil.wait_procs(workers, timeout=5)[1] == []
