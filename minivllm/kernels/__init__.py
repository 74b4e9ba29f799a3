"""Device kernels: `ops_for(device)` names the module of every op; worker and model call nothing else here."""

import importlib
import importlib.util
import logging
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from torch import Tensor

from minivllm.kernels.communicator import ALONE, Communicator

logger = logging.getLogger("minivllm.kernels")

OPS = (
    "attention",
    "kv_write",
    "norm",
    "rotary",
    "activation",
    "elementwise",
    "gemm",
    "gemm_fp8",
    "gemm_int8",
    "gemm_grouped",
    "moe",
    "sampling",
)


class Unrecordable(Exception):
    """Names what has no native form."""


@dataclass(frozen=True, slots=True)
class Ops:
    """One module per op; every family (`reference`, `cpu`, `triton`) has the same modules with the same functions.

    `recording` is the module whose `record` makes a program of a function that calls ops, or None if the family has none.
    `group` has the ranks among which a model that is built with these ops is divided.
    """

    name: str
    recording: ModuleType | None
    attention: ModuleType
    kv_write: ModuleType
    norm: ModuleType
    rotary: ModuleType
    activation: ModuleType
    elementwise: ModuleType
    gemm: ModuleType
    gemm_fp8: ModuleType
    gemm_int8: ModuleType
    gemm_grouped: ModuleType
    moe: ModuleType
    sampling: ModuleType
    group: Communicator = ALONE
    whole_experts: bool = False  # each rank has some of the experts instead of a part of each


def extension_error() -> str | None:
    """Why the compiled extension `minivllm._cpu` cannot be used, or None if it can."""
    try:
        importlib.import_module("minivllm._cpu")
    except ImportError as error:
        return str(error)
    return None


def set_kernel_threads(threads: int) -> None:
    """Threads of the compiled kernels, which have a team of their own, the calling thread included."""
    if extension_error() is None:
        importlib.import_module("minivllm._cpu").set_threads(threads)


def advise_huge_pages(memory: Tensor) -> None:
    """Ask the system for large pages under a tensor on the CPU, which kernels will stream through. Only a hint."""
    if memory.device.type == "cpu" and extension_error() is None:
        importlib.import_module("minivllm._cpu").advise_huge_pages(memory.data_ptr(), memory.nbytes)


@cache
def ops_for(device: str, use_extension: bool = True) -> Ops:
    """Ops for tensors on `device`; `use_extension=False` (MINIVLLM_NO_EXT=1) forces the torch reference on a CPU."""
    if device.startswith("cuda") and importlib.util.find_spec("triton") is not None:
        logger.info("kernels: Triton on %s", device)
        return _load("triton")
    if device != "cpu" or not use_extension:
        logger.info("kernels: torch reference on %s", device)
        return _load("reference")
    reason = extension_error()
    if reason is not None:
        logger.warning("kernels: torch reference (slow); the compiled extension is not available: %s", reason)
        return _load("reference")
    isa = importlib.import_module("minivllm._cpu").isa()
    logger.info("kernels: compiled extension, %s", isa)
    return _load("cpu")


def _load(family: str) -> Ops:
    modules: dict[str, Any] = {op: importlib.import_module(f"minivllm.kernels.{family}.{op}") for op in OPS}
    recording = importlib.import_module("minivllm.kernels.cpu.recording") if family == "cpu" else None
    return Ops(name=family, recording=recording, **modules)
