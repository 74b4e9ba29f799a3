"""The core that is started before there is a config: taken once, and never left behind."""

import psutil
import pytest

from minivllm.engine import spawn
from minivllm.entrypoints.cli.main import main


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) == before


def test_the_spare_is_taken_before_a_new_one_is_started():
    spawn.start_spare()
    spare, other = spawn.take(), spawn.take()
    try:
        assert spare.popen.pid != other.popen.pid
        assert len({*spare[1:], *other[1:]}) == 4
    finally:
        for each in (spare, other):
            each.popen.kill()
            each.popen.communicate()


def test_a_spare_that_nobody_takes_is_ended():
    spawn.start_spare()
    spawn.end_spare()
    spawn.end_spare()


@pytest.mark.parametrize("arguments", [["/no/such/folder"], ["m", "--port", "x"], ["m", "--prot", "1"]])
def test_a_command_that_fails_leaves_no_core(arguments, capfd):
    try:
        assert main(["serve", *arguments]) == 1
    except SystemExit as e:
        assert e.code == 2
    assert capfd.readouterr().err.startswith("minivllm: error: ")
