"""The CPU: threads from the config, memory from the kernel's figures and the limits of the control groups."""

import re
from pathlib import Path

import torch

from minivllm.config.sections.device import DeviceConfig
from minivllm.kernels import set_kernel_threads
from minivllm.worker.devices.base import Device, Memory

_GIB = 1024**3
_MAX_DEFAULT_KV = 4 * _GIB
_DEFAULT_KV_SHARE = 0.5  # of what is free: the machine has other uses for its memory
# Limit and usage files of control groups, version 2 and 1, from the group that a container sees as its root.
_CGROUPS = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat"),
    (
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory/memory.usage_in_bytes",
        "sys/fs/cgroup/memory/memory.stat",
    ),
)


class CpuDevice(Device):
    torch_name = "cpu"
    shared = True

    def __init__(self, config: DeviceConfig, index: int = 0, count: int = 1):
        self._threads = config.cpu_threads

    def set_up(self) -> None:
        torch.set_num_threads(self._threads)
        set_kernel_threads(self._threads)

    def memory(self) -> Memory:
        return read_memory(Path("/"))

    def default_kv_share(self, memory: Memory) -> int:
        return min(int(memory.free * _DEFAULT_KV_SHARE), _MAX_DEFAULT_KV)


def read_memory(root: Path) -> Memory:
    """The tighter of the machine's memory and the control group's limit; `root` is / except in tests."""
    meminfo = (root / "proc/meminfo").read_text()
    total, free = _meminfo(meminfo, "MemTotal"), _meminfo(meminfo, "MemAvailable")
    for limit_file, usage_file, stat_file in _CGROUPS:
        limit, usage = _number(root / limit_file), _number(root / usage_file)
        if limit is not None and usage is not None and limit < total:
            # Pages of files that nobody needs at the moment count as used, but are given back when asked for.
            reclaimable = _stat(root / stat_file, "inactive_file")
            total, free = limit, min(free, limit - usage + reclaimable)
    return Memory(total=total, free=max(0, free))


def _meminfo(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None, f"/proc/meminfo has no {name}"
    return int(found[1]) * 1024


def _number(path: Path) -> int | None:
    """None where there is no such file or no limit ("max")."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _stat(path: Path, name: str) -> int:
    try:
        found = re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
