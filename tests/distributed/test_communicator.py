"""Sums and joins over ranks: values, equality of the ranks, recorded calls, and ranks that go away."""

import importlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from distributed.ranks import connected, together

from minivllm.distributed.communicator import connect
from minivllm.distributed.groups import ALONE
from minivllm.kernels import extension_error, ops_for

needs_extension = pytest.mark.skipif(extension_error() is not None, reason="the extension minivllm._cpu is not built")
KINDS = [pytest.param(True, marks=needs_extension, id="shared-memory"), pytest.param(False, id="gloo")]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1), (3, 7), (1, 576), (33, 1000), (300, 576))  # the last one in more than one piece


@pytest.mark.parametrize("use_extension", KINDS)
@pytest.mark.parametrize("size", [2, 3])
def test_sums(use_extension: bool, size: int) -> None:
    group = connected(size, use_extension)
    for dtype in DTYPES:
        for shape in SHAPES:
            parts = [torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(size)]
            summed = together(size, lambda rank, parts=parts: group[rank].all_reduce(parts[rank].clone()))
            exact = torch.stack(parts).double().sum(0)
            assert all(torch.equal(one, summed[0]) for one in summed)
            torch.testing.assert_close(
                summed[0].double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
            )
            if use_extension:
                total = parts[0].float()
                for part in parts[1:]:
                    total += part
                assert torch.equal(summed[0], total.to(dtype))  # in order, and rounded once


@pytest.mark.parametrize("use_extension", KINDS)
@pytest.mark.parametrize(
    "ranges",
    [[(0, 4), (4, 8)], [(0, 3), (3, 10), (10, 11)], [(0, 2), (0, 2), (2, 4), (2, 4)], [(0, 300_000), (300_000, 600_000)]],
)
def test_joins(use_extension: bool, ranges: list[tuple[int, int]]) -> None:
    group, columns = connected(len(ranges), use_extension), ranges[-1][1]
    for rows in (1, 5):
        whole = torch.arange(rows * (columns + 1), dtype=torch.float32).view(rows, -1)[:, :columns]  # rows stand apart
        found = together(len(ranges), lambda rank, whole=whole: group[rank].all_gather(whole[:, slice(*ranges[rank])], ranges))
        assert all(torch.equal(one, whole) for one in found)


def test_alone() -> None:
    alone = connect("cpu", "", ALONE)
    x = torch.ones(2, 3)
    assert alone.all_reduce(x) is x and alone.all_gather(x, [(0, 3)]) is x


@needs_extension
def test_many_rounds_of_changing_sizes() -> None:
    """No rank overwrites what another has yet to read."""
    group = connected(2)

    def run(rank: int) -> bool:
        generator, right = torch.Generator().manual_seed(0), True
        for step in range(2000):
            count = int(torch.randint(1, 3000, (1,), generator=generator))
            right &= bool((group[rank].all_reduce(torch.full((count,), float(step + rank))) == 2 * step + 1).all())
        return right

    assert together(2, run) == [True, True]


@needs_extension
def test_recorded_calls() -> None:
    recording, elementwise = ops_for("cpu").recording, ops_for("cpu").elementwise
    group, ranges = connected(2), [(0, 4), (4, 6)]
    xs = [torch.randn(11, 4), torch.randn(11, 2)]

    def record(rank: int):
        x, own = xs[rank], group[rank]

        def function() -> torch.Tensor:
            joined = own.all_gather(x, ranges)
            elementwise.scale(joined, 2.0)
            return own.all_reduce(joined)

        return recording.record(function, [x], (11, 7), 64)

    programs = [record(rank) for rank in range(2)]  # one after the other: nothing is exchanged yet
    assert programs[0].ops == ["all_gather", "scale_add", "all_reduce"]
    for rows in (1, 40):
        parts = [torch.randn(rows, 4), torch.randn(rows, 2)]
        found = together(2, lambda rank, parts=parts, rows=rows: programs[rank].run([parts[rank]], (rows, 1)).clone())
        assert torch.equal(found[0], 4 * torch.cat(parts, dim=1)) and torch.equal(found[1], found[0])


@needs_extension
def test_who_leaves_is_missed() -> None:
    first, second = connected(2)
    second.close()
    with pytest.raises(RuntimeError, match="rank 1 of 2 is gone"):
        first.all_reduce(torch.ones(4))
    with pytest.raises(RuntimeError, match="left"):
        second.all_reduce(torch.ones(4))


PROCESS = """
import sys, time, torch
from minivllm.distributed.communicator import connect
from minivllm.distributed.groups import Layout
rank, name, rounds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
group = connect("cpu", name, Layout(2).place(rank))
for step in range(rounds):
    x = group.all_reduce(torch.full((40_000,), float(step + rank)).bfloat16())
    assert (x == torch.tensor(2.0 * step + 1).bfloat16()).all()
print("done", flush=True)
time.sleep(60)
"""


@needs_extension
def test_two_processes_one_of_which_is_killed(tmp_path: Path) -> None:
    name = f"test-{tmp_path.name}-{time.time_ns()}"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), name, str(50 + rank)],  # the second wants one round more
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    first, second = both
    try:
        assert first.stdout.readline() == "done\n"
        first.kill()  # nobody fetches its status yet
        _, error = second.communicate(timeout=60)
        assert "rank 0 of 2 is gone" in error and second.returncode == 1
        assert not list(Path("/dev/shm").glob(f"{name}*"))
    finally:
        for process in both:
            process.kill()
            process.communicate()


@needs_extension
def test_a_folder_that_is_not_there() -> None:
    extension = importlib.import_module("minivllm._cpu")
    with pytest.raises(RuntimeError, match="cannot share memory at"):
        extension.SharedGroup("/nowhere/at/all", 0, 2)
