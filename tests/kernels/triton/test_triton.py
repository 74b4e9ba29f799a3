"""The Triton kernels without a GPU: computed by the interpreter, and compiled. In processes of their own, side by side."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
COMMANDS = {  # the longest first
    "ops are equal to the reference": (*PYTEST, "tests/kernels/triton/interpreted/test_ops.py"),
    "kernels compile without spills and fit": ("benchmarks/gpu/ahead.py", "--quick"),
    "models are equal to the reference": (*PYTEST, "tests/kernels/triton/interpreted/test_model.py"),
}

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[subprocess.Popen, Path]]]:
    """Of each command its process and the file with what it says. Each keeps one core busy."""
    started: dict[str, tuple[subprocess.Popen, Path]] = {}
    for name, command in COMMANDS.items():
        folder = tmp_path_factory.mktemp("triton")
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TRITON_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
        if command[0] == "-m":
            env["TRITON_INTERPRET"] = "1"
        with (folder / "said").open("w") as said:
            process = subprocess.Popen([sys.executable, *command], cwd=REPOSITORY, env=env, stdout=said, stderr=said)
        started[name] = process, folder / "said"
    yield started
    for process, _ in started.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_gpu(name: str, running: dict[str, tuple[subprocess.Popen, Path]]) -> None:
    process, said = running[name]
    assert process.wait(290) == 0, said.read_text()[-9000:]
