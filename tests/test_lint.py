"""ruff and mypy, as tests, so that one command runs everything."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy"])
def test_lint(command: str) -> None:
    pytest.importorskip(command.split()[0])
    done = subprocess.run([sys.executable, "-m", *command.split()], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
