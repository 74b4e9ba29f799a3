"""The threads of the compiled kernels: any number of them and of callers, forks, and rest when there is nothing to do."""

import importlib
import os
import threading
import time
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from minivllm.kernels import extension_error, ops_for, set_kernel_threads

pytestmark = pytest.mark.skipif(extension_error() is not None, reason="the extension minivllm._cpu is not built")


@pytest.fixture
def extension() -> Iterator[ModuleType]:
    module = importlib.import_module("minivllm._cpu")
    before = module.num_threads()
    yield module
    module.set_threads(before)


@pytest.fixture(scope="module")
def work() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(300, 256).bfloat16(), torch.randn(1000, 256).bfloat16()


def product(work: tuple[Tensor, Tensor]) -> Tensor:
    x, weight = work
    gemm = ops_for("cpu").gemm
    return gemm.linear(x, gemm.pack(weight))


def test_the_number_of_threads(extension: ModuleType) -> None:
    set_kernel_threads(3)
    assert extension.num_threads() == 3
    with pytest.raises(ValueError, match="at least one thread"):
        set_kernel_threads(0)


def test_results_do_not_depend_on_the_number_of_threads(extension: ModuleType, work: tuple[Tensor, Tensor]) -> None:
    extension.set_threads(1)
    alone = product(work)
    for threads in (2, 3, 8, 2):
        extension.set_threads(threads)
        for _ in range(50):
            assert torch.equal(product(work), alone)


def test_many_callers_at_once(extension: ModuleType, work: tuple[Tensor, Tensor]) -> None:
    extension.set_threads(2)
    alone, wrong = product(work), []

    def call() -> None:
        wrong.extend(True for _ in range(30) if not torch.equal(product(work), alone))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not wrong and not any(caller.is_alive() for caller in callers)


def test_a_child_of_fork_makes_its_own_team(extension: ModuleType, work: tuple[Tensor, Tensor]) -> None:
    extension.set_threads(2)
    alone = product(work)
    for _ in range(5):
        child = os.fork()
        if child == 0:
            # No torch op with threads of its own here: OpenMP's do not survive a fork.
            torch.set_num_threads(1)
            os._exit(0 if torch.equal(product(work), alone) else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(product(work), alone)


def test_idle_threads_use_no_cpu(extension: ModuleType, work: tuple[Tensor, Tensor]) -> None:
    extension.set_threads(3)
    product(work)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05
    assert torch.equal(product(work), product(work))
