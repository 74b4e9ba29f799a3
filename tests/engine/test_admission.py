import pytest

from minivllm.engine import admission
from minivllm.engine.admission import Admission
from minivllm.errors import OverloadedError


def allowed(gate, num_new, num_open, num_waiting=0):
    try:
        gate.check(num_new, num_open, num_waiting)
    except OverloadedError:
        return False
    return True


def test_seats_and_queue():
    gate = Admission(max_queued=3, max_running=2)
    assert allowed(gate, 5, 0) and not allowed(gate, 6, 0)
    assert allowed(gate, 1, 4) and not allowed(gate, 1, 5)


def test_queue_that_waits_for_memory():
    gate = Admission(max_queued=3, max_running=100)
    assert allowed(gate, 1, 10, num_waiting=2) and not allowed(gate, 2, 10, num_waiting=2)
    assert allowed(gate, 1, 0, num_waiting=9)  # old figures: nothing is open any more


def test_no_queue_and_no_limit():
    assert allowed(Admission(0, 2), 2, 0) and not allowed(Admission(0, 2), 3, 0)
    assert allowed(Admission(None, 1), 10**6, 10**6)


def test_retry_after_follows_the_rate(monkeypatch):
    clock = {"now": 100.0}
    monkeypatch.setattr(admission, "monotonic", lambda: clock["now"])
    gate = Admission(4, 2)
    assert gate.retry_after(10) == admission.UNKNOWN_SECONDS
    for _ in range(10):
        gate.record_finished(1)
        clock["now"] += 1
    assert gate.retry_after(8) == pytest.approx(8.0)
    assert gate.retry_after(1000) == 60.0
    assert gate.retry_after(1) == 1.0
    clock["now"] = 500.0
    assert gate.retry_after(1) == admission.UNKNOWN_SECONDS
