"""Fixtures for all tests: the demo model's folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before any test imports torch: see minivllm.config.env.calm_openmp

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct: MINIVLLM_TEST_MODELS/smollm2, by default below ~/.cache; fetched if it is not there."""
    models = Path(os.environ.get("MINIVLLM_TEST_MODELS", Path.home() / ".cache" / "minivllm-models")).expanduser()
    folder = models / "smollm2"
    if not (folder / "config.json").is_file():
        subprocess.run([sys.executable, str(REPOSITORY / "examples" / "get_demo_model.py"), str(folder)], check=True)
    return folder
