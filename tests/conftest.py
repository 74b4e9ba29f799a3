"""Fixtures for all tests: the demo models' folders."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before any test imports torch: see minivllm.config.env.calm_openmp

REPOSITORY = Path(__file__).resolve().parent.parent


MODELS = Path(os.environ.get("MINIVLLM_TEST_MODELS", Path.home() / ".cache" / "minivllm-models")).expanduser()


def demo_model(name: str, *flags: str) -> Path:
    """MINIVLLM_TEST_MODELS/name, by default below ~/.cache; fetched if it is not there."""
    folder = MODELS / name
    if not (folder / "config.json").is_file():
        subprocess.run([sys.executable, str(REPOSITORY / "examples" / "get_demo_model.py"), *flags, str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct."""
    return demo_model("smollm2")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Folder of all-MiniLM-L6-v2, which embeds texts."""
    return demo_model("minilm", "--embedding")


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """Folder or GGUF file of a model that is too large to be fetched for a test; without it the test is skipped."""

    def find(name: str) -> Path:
        path = MODELS / name
        if not (path if path.suffix == ".gguf" else path / "config.json").is_file():
            pytest.skip(f"{path} is not there")
        return path

    return find
