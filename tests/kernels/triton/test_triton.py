"""The Triton kernels without a GPU: computed by the interpreter, and compiled. Both in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

pytest.importorskip("triton")


def run(tmp_path: Path, *command: str, **environment: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TRITON_CACHE_DIR": str(tmp_path), **environment}
    done = subprocess.run([sys.executable, *command], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"


def test_equal_to_reference_under_the_interpreter(tmp_path: Path) -> None:
    folder = "tests/kernels/triton/interpreted"
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder, TRITON_INTERPRET="1")


def test_compiles_without_spills_and_fits(tmp_path: Path) -> None:
    run(tmp_path, "benchmarks/gpu/ahead.py", "--quick")
