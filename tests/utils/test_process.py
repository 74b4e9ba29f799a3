"""How many cores there are, told from files of a make-believe machine."""

import os
from pathlib import Path

import pytest

from minivllm.utils import process


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four CPUs, two hyper-threads a core."""
    for cpu in range(4):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    monkeypatch.setattr(process, "CPU_TOPOLOGY", tmp_path)
    monkeypatch.setattr(process, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    return tmp_path


def test_hyper_threads_count_once(machine: Path) -> None:
    assert process.available_cores() == 2


def test_affinity(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    assert process.available_cores() == 1


def test_unknown_topology(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CPU_TOPOLOGY", machine / "none")
    assert process.available_cores() == 4


@pytest.mark.parametrize(
    ("text", "quota", "cores"), [("max 100000", None, 2), ("150000 100000", 1.5, 1), ("50000 100000", 0.5, 1)]
)
def test_quota(machine: Path, text: str, quota: float | None, cores: int) -> None:
    (machine / "cpu.max").write_text(text + "\n")
    assert (process.cgroup_cpu_quota(), process.available_cores()) == (quota, cores)


@pytest.mark.parametrize(("micros", "quota"), [("-1", None), ("100000", 1.0)])
def test_quota_of_cgroup_v1(machine: Path, micros: str, quota: float | None) -> None:
    (machine / "cpu").mkdir()
    (machine / "cpu/cpu.cfs_quota_us").write_text(micros)
    (machine / "cpu/cpu.cfs_period_us").write_text("100000")
    assert process.cgroup_cpu_quota() == quota


@pytest.mark.parametrize(
    ("files", "torch_version", "found"),
    [(("gpu",), "2.13.0", True), ((), "2.13.0", False), (("gpu",), "2.13.0+cpu", False)],
)
def test_cuda_is_a_gpu_and_a_torch_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], torch_version: str, found: bool
) -> None:
    pytest.importorskip("triton")
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(process, "GPUS", (tmp_path / "gpu",))
    monkeypatch.setattr(process.importlib.metadata, "version", lambda name: torch_version)
    assert process.has_cuda() == found
