"""`minivllm serve` on two nodes, without Ray: answers over HTTP as of one process, and how all ends."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from executor.workers import PROMPTS
from real_server import free_port
from tiny_llama import write_tiny_llama

from minivllm import LLM, SamplingParams

REPOSITORY = Path(__file__).resolve().parents[2]
FLAGS = ["--dtype", "float32", "--cpu-threads", "1", "--num-gpu-blocks-override", "128", "--nnodes", "2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    with LLM(str(model), dtype="float32", cpu_threads=1, num_gpu_blocks_override=128) as llm:
        params = SamplingParams(max_tokens=16, ignore_eos=True, temperature=0)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture
def launch_nodes(launch, model: Path, tmp_path: Path):
    """`with launch_nodes("--flag", …) as (server, node):` node 0 and the process of node 1. of_first: flags of node 0 alone."""

    @contextlib.contextmanager
    def launched(*flags: str, of_first: tuple[str, ...] = ()) -> Iterator[tuple[object, psutil.Process]]:
        flags = (*FLAGS, *flags, "--master-addr", "127.0.0.2", "--master-port", str(free_port()))
        command = [sys.executable, "-m", "minivllm", "serve", str(model), *flags, "--headless", "--node-rank", "1"]
        with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log, start_new_session=True) as node:
            try:
                with launch(model, *flags, *of_first) as server:
                    workers = psutil.Process(node.pid).children()
                    assert [w for w in workers if "worker_process" in " ".join(w.cmdline())]
                    yield server, node
                node.wait(10)
            finally:
                node.kill()
        assert psutil.wait_procs(workers, timeout=5)[1] == []

    return launched


def ask(url: str) -> list[list[int]]:
    body = {"prompt": PROMPTS, "max_tokens": 16, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    return [choice["token_ids"] for choice in httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"]]


def test_answers_and_ctrl_c(launch_nodes, expected: list[list[int]]) -> None:
    with launch_nodes("-tp", "2", of_first=("--api-server-count", "2")) as (server, node):
        for _ in range(4):  # by either API process
            assert ask(server.url) == expected
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 0
        assert node.wait(10) == 0


def test_answers_and_a_killed_worker(launch_nodes, expected: list[list[int]]) -> None:
    with launch_nodes("-tp", "2", "-pp", "2") as (server, node):  # a stage on each, whose workers share memory
        assert ask(server.url) == expected
        worker = psutil.Process(node.pid).children()[1]
        body = {"prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as reply:
            lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
            next(lines)
            worker.kill()
            (*_, last) = lines
        assert f"Node 1: Worker 3 (process {worker.pid}) was killed by signal 9." in json.loads(last[6:])["error"]["message"]
        assert server.process.wait(10) == node.wait(10) == 1


def test_a_killed_node(model: Path) -> None:
    command = [sys.executable, "benchmarks/kill.py", str(model), "--times", "1", "--kinds", "node", "--", *FLAGS, "-tp", "2"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 right" in done.stdout
