"""How much memory the KV cache is given: from the user's figures, the machine's, and a control group's limit."""

from pathlib import Path

import pytest
import torch

from minivllm.config.engine_config import CacheConfig, DeviceConfig
from minivllm.worker.devices.base import Memory
from minivllm.worker.devices.cpu import CpuDevice, read_memory
from minivllm.worker.memory import available_kv_bytes

GIB = 1024**3


class FixedDevice(CpuDevice):
    def __init__(self, total: float, free: float):
        super().__init__(DeviceConfig(cpu_threads=1))
        self._memory = Memory(total=int(total * GIB), free=int(free * GIB))

    def memory(self) -> Memory:
        return self._memory


def make_root(folder: Path, total_kib: int, available_kib: int, **cgroup: str) -> Path:
    (folder / "proc").mkdir()
    (folder / "proc/meminfo").write_text(
        f"MemTotal:       {total_kib} kB\nMemFree:        1 kB\nMemAvailable:   {available_kib} kB\n"
    )
    for name, text in cgroup.items():
        path = folder / "sys/fs/cgroup" / name.replace("__", "/").replace("-", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("cache", "total", "free", "expected"),
    [
        (CacheConfig(), 24, 4, 2),  # half of what is free
        (CacheConfig(), 64, 60, 4),  # but not more than 4 GiB
        (CacheConfig(kv_cache_memory_bytes=GIB // 4), 24, 4, 0.25),
        (CacheConfig(gpu_memory_utilization=0.5), 24, 20, 8),  # 12, of which others have 4
        (CacheConfig(gpu_memory_utilization=0.1), 24, 20, 0),
    ],
)
def test_available_kv_bytes(cache, total, free, expected):
    device = FixedDevice(total, free)
    assert available_kv_bytes(cache, device, 1, largest_step=pytest.fail) == int(expected * GIB)
    each = 1 if cache.kv_cache_memory_bytes else 4
    assert available_kv_bytes(cache, device, 4, largest_step=pytest.fail) == int(expected * GIB) // each


def test_a_device_without_swap_sets_aside_what_a_step_takes():
    class Profiled(FixedDevice):
        def peak_bytes(self, run):
            run()
            return 2 * GIB

    ran = []
    device = Profiled(24, 10)
    assert available_kv_bytes(CacheConfig(gpu_memory_utilization=0.75), device, 1, lambda: ran.append(1)) == 2 * GIB
    assert available_kv_bytes(CacheConfig(), device, 1, lambda: ran.append(1)) == 2 * GIB
    assert available_kv_bytes(CacheConfig(gpu_memory_utilization=0.6), device, 1, lambda: ran.append(1)) == 0
    assert len(ran) == 3


def test_machine_without_control_groups(tmp_path):
    assert read_memory(make_root(tmp_path, 1000, 400)) == Memory(total=1000 * 1024, free=400 * 1024)


def test_control_group_of_version_2(tmp_path):
    root = make_root(
        tmp_path, 1000, 400,
        **{"memory-max": "300000\n", "memory-current": "100000\n", "memory-stat": "active_file 5\ninactive_file 40000\n"},
    )  # fmt: skip
    assert read_memory(root) == Memory(total=300_000, free=240_000)


def test_control_group_without_a_limit(tmp_path):
    root = make_root(tmp_path, 1000, 400, **{"memory-max": "max\n", "memory-current": "100000\n"})
    assert read_memory(root) == Memory(total=1000 * 1024, free=400 * 1024)


def test_control_group_of_version_1_above_the_machine(tmp_path):
    root = make_root(
        tmp_path, 1000, 400,
        **{"memory__memory-limit_in_bytes": "9223372036854771712\n", "memory__memory-usage_in_bytes": "100000\n"},
    )  # fmt: skip
    assert read_memory(root) == Memory(total=1000 * 1024, free=400 * 1024)


def test_figures_of_this_machine():
    memory = read_memory(Path("/"))
    assert 0 < memory.free <= memory.total


def test_threads_are_set():
    before = torch.get_num_threads()
    try:
        CpuDevice(DeviceConfig(cpu_threads=1)).set_up()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
