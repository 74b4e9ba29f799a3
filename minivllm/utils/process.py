"""Facts about this process and its machine. Used by config for defaults."""

import importlib.metadata
import importlib.util
import math
import os
from pathlib import Path

CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")
GPUS = (Path("/dev/nvidia0"), Path("/dev/dxg"))  # of Linux, and of Linux within Windows


def available_cores() -> int:
    """Physical cores this process may use: its affinity, hyper-threads counted once, at most the container's CPU quota."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    siblings = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    quota = cgroup_cpu_quota()
    return max(1, min(len(siblings), math.floor(quota) if quota is not None else len(siblings)))


def has_cuda() -> bool:
    """Whether there is an NVIDIA GPU, a build of torch for it, and triton; without importing them, which takes seconds."""
    if not any(gpu.exists() for gpu in GPUS) or importlib.util.find_spec("triton") is None:
        return False
    try:
        return not importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False


def cgroup_cpu_quota() -> float | None:
    """CPUs the container may use (cgroup v2 or v1), None if unlimited."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        micros = int((CGROUP / "cpu/cpu.cfs_quota_us").read_text())
        return micros / int((CGROUP / "cpu/cpu.cfs_period_us").read_text()) if micros > 0 else None
    except (OSError, ValueError):
        return None


def _siblings(cpu: int) -> str:
    try:
        return (CPU_TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)
