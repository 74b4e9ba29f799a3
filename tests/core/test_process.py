"""The core as a real child process, with a fake worker in it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from fake_worker import absorb, expected_output, make_request

from minivllm.messages.output import CallReply, EngineDead, EngineReady, TokenOutputs
from minivllm.messages.request import AbortRequests, AddRequests, CallMethod


def finish(core, request_ids):
    """Outputs up to the last of these requests and the figures of the batch that brought it."""
    answers = {}
    while True:
        batch = core.receive(TokenOutputs)
        absorb(answers, batch)
        if all(x in answers and answers[x].reason for x in request_ids):
            return answers, batch.stats


def test_requests_are_served_and_methods_answered(fake_core):
    core = fake_core(max_model_len=40)
    ready = core.receive()
    assert ready == EngineReady(num_blocks=64, block_size=4, max_model_len=40, pid=core.process.pid)
    requests = [make_request(str(i), range(1, 5 + i), max_tokens=12) for i in range(5)]
    core.send(AddRequests(requests[:3]))
    core.send(AddRequests(requests[3:]))
    answers, stats = finish(core, [r.request_id for r in requests])
    for request in requests:
        answer = answers[request.request_id]
        assert (answer.tokens, answer.reason, answer.stop_reason) == expected_output(request, 40)
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)

    core.send(CallMethod(1, "reset_prefix_cache", []))
    assert core.receive(CallReply) == CallReply(1, True)
    core.send(CallMethod(2, "no_such", []))
    assert "no method 'no_such'; it has check_health, " in core.receive(CallReply).error
    core.send(CallMethod(3, "reset_prefix_cache", [1, 2]))
    assert core.receive(CallReply).error.startswith("TypeError")
    core.send(CallMethod(4, "stats", []))
    assert core.receive(CallReply).result[:2] == [0, 0]


def test_an_abort_is_obeyed_within_a_step_and_the_core_then_sleeps(fake_core):
    core = fake_core(
        "def execute(self, plan):\n    import time; time.sleep(0.02)\n    return super().execute(plan)",
        max_model_len=1000,
        num_gpu_blocks_override=250,
    )
    core.receive(EngineReady)
    core.send(AddRequests([make_request("a", [1, 2], max_tokens=900, ignore_eos=True)]))
    core.receive(TokenOutputs)
    core.send(AbortRequests(["a"]))
    while core.receive(TokenOutputs).stats.num_running:
        pass
    assert not core.outbox.poll(200)
    process = psutil.Process(core.process.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(0.5)
    assert sum(process.cpu_times()[:2]) - before < 0.1  # one that spins takes all of it


def test_group_signals_are_left_to_the_parent(fake_core):
    core = fake_core()
    core.receive(EngineReady)
    core.process.send_signal(signal.SIGINT)
    core.process.send_signal(signal.SIGTERM)
    core.send(CallMethod(1, "check_health", []))
    assert core.receive(CallReply) == CallReply(1, True)


def test_closing_stdin_ends_it(fake_core):
    core = fake_core()
    core.receive(EngineReady)
    core.process.stdin.close()
    status, log = core.wait()
    assert status == 0
    assert "Traceback" not in log


def test_a_parent_that_never_sends_a_config_leaves_nothing(fake_core):
    core = fake_core(send_config=False)
    core.process.stdin.close()
    assert core.wait() == (1, "")


def test_a_step_that_fails_is_told_in_one_line(fake_core):
    core = fake_core("def execute(self, plan):\n    raise RuntimeError('boom\\nmore')")
    core.receive(EngineReady)
    core.send(AddRequests([make_request("a", [1, 2])]))
    assert core.receive() == EngineDead("RuntimeError: boom", is_config=False)
    status, log = core.wait()
    assert status == 1
    assert "Traceback" in log


def test_a_config_that_cannot_work_is_told_without_a_traceback(fake_core):
    core = fake_core("def available_kv_bytes(self):\n    return 128", max_model_len=32)
    dead = core.receive()
    assert dead.is_config
    assert dead.message.startswith("To serve one request of max_model_len=32 tokens")
    status, log = core.wait()
    assert status == 1
    assert "Traceback" not in log


def test_it_dies_with_a_parent_that_is_killed(tmp_path):
    program = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parent.parent)!r}]
from conftest import CoreUnderTest
from fake_worker import make_config
core = CoreUnderTest("pass", make_config())
core.receive()
print(core.process.pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    core = psutil.Process(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    assert psutil.wait_procs([core], timeout=20)[0]
