"""Fixtures for all tests: the demo models' folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before any test imports torch: see minivllm.config.env.calm_openmp

REPOSITORY = Path(__file__).resolve().parent.parent


def demo_model(name: str, *flags: str) -> Path:
    """MINIVLLM_TEST_MODELS/name, by default below ~/.cache; fetched if it is not there."""
    models = Path(os.environ.get("MINIVLLM_TEST_MODELS", Path.home() / ".cache" / "minivllm-models")).expanduser()
    folder = models / name
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
