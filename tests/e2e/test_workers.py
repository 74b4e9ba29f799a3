"""`minivllm serve` with several workers: answers over HTTP as of one, rest while idle, and what a kill leaves."""

import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from executor.workers import PROMPTS
from tiny_llama import write_tiny_llama

from minivllm import LLM, SamplingParams

REPOSITORY = Path(__file__).resolve().parents[2]
FLAGS = ["--dtype", "float32", "--cpu-threads", "1", "--num-gpu-blocks-override", "128"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


def seconds_of(processes: list[psutil.Process]) -> float:
    """Of a processor, so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def test_answers_and_rest(launch, model: Path) -> None:
    with LLM(str(model), dtype="float32", cpu_threads=1, num_gpu_blocks_override=128) as llm:
        params = SamplingParams(max_tokens=16, ignore_eos=True, temperature=0)
        expected = [
            o.outputs[0].token_ids for o in llm.generate([{"prompt_token_ids": p} for p in PROMPTS], params, use_tqdm=False)
        ]
    with launch(model, *FLAGS, "-tp", "2", "-pp", "2") as server:
        body = {"prompt": PROMPTS, "max_tokens": 16, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
        reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert [choice["token_ids"] for choice in reply["choices"]] == expected
        workers = [p for p in map(psutil.Process, server.children()) if "worker_process" in " ".join(p.cmdline())]
        assert len(workers) == 4
        before = seconds_of(workers)
        time.sleep(0.5)
        assert seconds_of(workers) - before < 0.1  # four that spin take as much as the machine has
        workers[3].kill()  # while nobody asks for anything
        server.process.wait(10)
    assert server.process.returncode != 0
    assert "Worker 3 (process " in server.log.read_text()


def test_an_idle_worker_of_a_ray_cluster_dies(launch, model: Path) -> None:
    pytest.importorskip("ray")
    with launch(model, *FLAGS, "-tp", "2", "--distributed-executor-backend", "ray") as server:
        family = psutil.Process(server.process.pid).children(recursive=True)
        workers = [p for p in family if "RayWorker" in " ".join(p.cmdline())]
        assert len(workers) == 2
        workers[1].kill()  # while nobody asks for anything
        server.process.wait(10)
    assert server.process.returncode != 0
    assert "A worker in the Ray cluster failed" in server.log.read_text()
    _, left = psutil.wait_procs(family, timeout=5)
    assert all(p.status() == psutil.STATUS_ZOMBIE for p in left)  # somebody else's to reap


@pytest.mark.parametrize(("kind", "backend"), [("worker", "mp"), ("core", "mp"), ("core", "ray")])
def test_kill(model: Path, kind: str, backend: str) -> None:
    if backend == "ray":
        pytest.importorskip("ray")
    flags = [*FLAGS, "-tp", "2", "--distributed-executor-backend", backend]
    command = [sys.executable, "benchmarks/kill.py", str(model), "--times", "1", "--kinds", kind, "--", *flags]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 right" in done.stdout
