"""Ranks as threads of the test's process: what holds for processes holds for them, and they cost less to start."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import uuid4

from minivllm.distributed.communicator import connect
from minivllm.distributed.groups import Layout
from minivllm.kernels.communicator import Communicator

T = TypeVar("T")
TIMEOUT = 60.0


def together(size: int, function: Callable[[int], T]) -> list[T]:
    """function(rank) of all ranks at once; a failure of any is raised."""
    with ThreadPoolExecutor(size) as pool:
        return [future.result(TIMEOUT) for future in [pool.submit(function, rank) for rank in range(size)]]


def connected(size: int, use_extension: bool = True) -> list[Communicator]:
    name, layout = f"test-{uuid4().hex}", Layout(size)
    return together(size, lambda rank: connect("cpu", name, layout.place(rank), use_extension))
