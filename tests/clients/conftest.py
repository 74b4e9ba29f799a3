"""Fixtures of the tests with clients: real servers with real models."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from real_server import Server, launch, server

__all__ = ["launch", "server"]


@pytest.fixture(scope="session")
def qwen(launch: Callable[..., AbstractContextManager[Server]], real_model: Callable[[str], Path]) -> Iterator[Server]:
    """A server with a model that has learnt to call tools."""
    with launch(real_model("qwen05.gguf"), "--served-model-name", "qwen", "--max-model-len", "4096") as running:
        yield running
