"""Stands in for msgspec where it is not installed, so that a worker runs with torch, triton and transformers alone.

Within one process the messages between scheduler and worker are plain records; nothing is encoded.
"""

import copy
import dataclasses
import importlib
import inspect
import json
import sys
import types
from collections.abc import Hashable
from functools import partial
from typing import Any


class Struct:
    """A dataclass by inheritance. Lists and the like are copied for each record, as msgspec does."""

    def __init_subclass__(cls, **options: Any) -> None:
        for name in inspect.get_annotations(cls):
            default = cls.__dict__.get(name)
            if default is not None and not isinstance(default, (Hashable, dataclasses.Field)):
                setattr(cls, name, dataclasses.field(default_factory=partial(copy.copy, default)))
        dataclasses.dataclass(kw_only=options.get("kw_only", False))(cls)


class DecodeError(ValueError):
    pass


def provide() -> None:
    """Before anything of minivllm is imported."""
    try:
        importlib.import_module("msgspec")
    except ImportError:
        module: Any = types.ModuleType("msgspec")
        module.Struct, module.Raw, module.field = Struct, bytes, dataclasses.field
        module.Meta = lambda **bounds: None  # of what users write; nothing is checked
        module.DecodeError = module.MsgspecError = DecodeError
        module.json = types.SimpleNamespace(Encoder=json.JSONEncoder, decode=lambda data, type=None: json.loads(data))
        module.structs = types.SimpleNamespace(replace=dataclasses.replace)
        sys.modules["msgspec"] = module
