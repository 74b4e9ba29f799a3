"""The one-process executor hands on results and failures of its worker."""

import importlib
import sys
import types

import pytest
from fake_worker import FakeWorker, make_config

from minivllm.messages.step import StepPlan, StepResult


@pytest.fixture
def executor(monkeypatch):
    fake = types.ModuleType("minivllm.worker.worker")
    fake.Worker = FakeWorker
    monkeypatch.setitem(sys.modules, "minivllm.worker.worker", fake)
    monkeypatch.delitem(sys.modules, "minivllm.executor.uniproc", raising=False)
    yield importlib.import_module("minivllm.executor.uniproc").UniprocExecutor(make_config())
    sys.modules.pop("minivllm.executor.uniproc")


def test_a_step_is_done_when_execute_returns(executor):
    future = executor.execute(StepPlan(7, [], [], []))
    assert future.done()
    assert future.result() == StepResult(7, [])


def test_a_failing_step_fails_its_future_only(executor):
    future = executor.execute(StepPlan(1, [3], [], []))
    with pytest.raises(KeyError):
        future.result()


def test_calls_reach_the_worker(executor):
    assert executor.call_all("available_kv_bytes") == [4096]
    with pytest.raises(AttributeError):
        executor.call_all("no_such")
    executor.check_health()


def test_after_shutdown_it_refuses(executor):
    executor.shutdown()
    executor.shutdown()
    for use in (executor.check_health, lambda: executor.call_all("kv_spec")):
        with pytest.raises(RuntimeError, match="shut down"):
            use()
    with pytest.raises(RuntimeError, match="shut down"):
        executor.execute(StepPlan(1, [], [], [])).result()
