"""The environment variables, read and written here only. Every one that we read starts with MINIVLLM_."""

import os
from collections.abc import Mapping

from minivllm.errors import ConfigError
from minivllm.utils.logging import LEVELS

_FOR_WORKERS = ("MINIVLLM_", "HF_", "NCCL_", "GLOO_", "TORCH_", "TRITON_")


def api_keys() -> tuple[str, ...]:
    """MINIVLLM_API_KEY: keys that clients must send, separated by commas; --api-key comes before it."""
    return _keys("MINIVLLM_API_KEY")


def admin_api_keys() -> tuple[str, ...]:
    """MINIVLLM_ADMIN_API_KEY: keys for the routes of admins; --admin-api-key comes before it."""
    return _keys("MINIVLLM_ADMIN_API_KEY")


def _keys(variable: str) -> tuple[str, ...]:
    return tuple(key for key in (k.strip() for k in os.environ.get(variable, "").split(",")) if key)


def cpu_threads() -> int | None:
    """MINIVLLM_CPU_THREADS: default of --cpu-threads."""
    text = os.environ.get("MINIVLLM_CPU_THREADS", "")
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"MINIVLLM_CPU_THREADS must be an integer of at least 1, got {text!r}.")
    return int(text)


def no_extension() -> bool:
    """MINIVLLM_NO_EXT: run on the torch reference kernels even where the compiled ones are installed."""
    return os.environ.get("MINIVLLM_NO_EXT", "0") not in ("", "0")


def calm_openmp() -> None:
    """Let OpenMP threads sleep soon after a parallel region. To be called before torch is imported for the first time.

    By default libgomp's spin for milliseconds, which costs an idle core and, beside any other busy process, the caller.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def logging_level() -> str:
    """MINIVLLM_LOGGING_LEVEL: DEBUG, INFO (default), WARNING, ERROR, CRITICAL or OFF."""
    level = os.environ.get("MINIVLLM_LOGGING_LEVEL", "").upper() or "INFO"
    if level not in (*LEVELS, "OFF"):
        raise ConfigError(f"MINIVLLM_LOGGING_LEVEL must be one of {', '.join(LEVELS)} or OFF, got {level!r}.")
    return level


def names_gloo_interface() -> bool:
    """GLOO_SOCKET_IFNAME: torch's own; by which network workers talk on CPUs of several machines."""
    return bool(os.environ.get("GLOO_SOCKET_IFNAME"))


def for_workers() -> dict[str, str]:
    """What workers on other machines should know, too."""
    return {name: value for name, value in os.environ.items() if name.startswith(_FOR_WORKERS)}


def adopt(variables: Mapping[str, str]) -> None:
    """Of the process that started this one, which runs elsewhere."""
    os.environ.update(variables)


def minivllm_variables() -> dict[str, str]:
    """Those that are set, for bug reports."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("MINIVLLM_")}
