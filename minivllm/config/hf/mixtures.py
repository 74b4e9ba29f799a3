"""Flags of mixtures of experts."""

from collections.abc import Callable
from typing import Any

from minivllm.config.hf.reader import Reader

FAMILIES: dict[str, Callable[[Reader], dict[str, Any]]] = {}
