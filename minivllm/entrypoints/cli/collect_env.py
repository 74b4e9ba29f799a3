"""`minivllm collect-env`: what a bug report should say about the machine and the installation."""

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import sys
from pathlib import Path

from minivllm.config.env import minivllm_variables
from minivllm.utils.process import available_cores, cgroup_cpu_quota
from minivllm.version import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "fastapi", "uvicorn", "uvloop", "pyzmq", "msgspec")
CPU_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16")
SECRETS = ("KEY", "TOKEN")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print what a bug report should say about this machine and this installation."


def run(args: argparse.Namespace) -> int:
    for name, value in facts().items():
        print(f"{name:<14} {value}")
    return 0


def facts() -> dict[str, str]:
    cpu = _fields("/proc/cpuinfo")
    flags = (cpu.get("flags") or cpu.get("Features") or "").split()
    quota = cgroup_cpu_quota()
    return {
        "minivllm": __version__,
        "CPU kernels": "compiled" if importlib.util.find_spec("minivllm._cpu") else "not compiled: torch reference (slow)",
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "CPU": f"{cpu.get('model name', platform.machine())} [{' '.join(f for f in CPU_FLAGS if f in flags)}]",
        "cores": f"{available_cores()} physical of {os.cpu_count()} logical" + ("" if quota is None else f", quota {quota:g}"),
        "memory": _fields("/proc/meminfo").get("MemTotal", "unknown"),
        **{package: _version(package) for package in PACKAGES},
        **{name: "(set)" if name.endswith(SECRETS) else value for name, value in minivllm_variables().items()},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _fields(path: str) -> dict[str, str]:
    """The first value of each `name: value` line."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.partition(":") for line in reversed(lines)]
    return {name.strip(): value.strip() for name, _, value in pairs if value}
