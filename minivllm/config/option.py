"""`option(default, help, …)` declares one option: its field, its command-line flag, its check. Used by `sections/`."""

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

AUTO = -1  # an integer option that config.resolve chooses; a resolved config never holds it

_UNITS = {"k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)(i?)([bB]?)")


@dataclass(frozen=True, kw_only=True)
class Option:
    """What is declared of one option. `type` is without None; `check` brings a value from anywhere into that type."""

    name: str
    type: type
    default: Any
    help: str
    optional: bool  # None is allowed and means "not set"
    choices: tuple[str, ...] = ()
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)  # other spellings of a choice
    low: float | None = None
    above: float | None = None  # like low, itself excluded
    high: float | None = None
    auto: bool = False  # accepts "auto" or -1, which become AUTO
    metavar: str | None = None
    short: str | None = None  # a second flag with one dash

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def check(self, value: object) -> Any:
        """`value` (or its text) as this option's type; ValueError says what is allowed."""
        if self.type is bool:
            return _to_bool(value)
        if self.type is int:
            return self._check_range(AUTO if self.auto and value in ("auto", "-1", AUTO) else _to_int(value))
        if self.type is float:
            return self._check_range(_to_float(value))
        if self.type is dict:
            return _to_dict(value)
        if self.type is tuple:
            return _to_tuple(value)
        if not isinstance(value, str):
            raise ValueError(f"must be text, got {value!r}")
        value = self.aliases.get(value, value)
        if self.choices and value not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}, got {value!r}")
        return value

    def _check_range(self, value: float) -> float:
        if self.auto and value == AUTO:
            return value
        if self.low is not None and value < self.low:
            raise ValueError(f"must be at least {self.low}, got {value}")
        if self.above is not None and value <= self.above:
            raise ValueError(f"must be greater than {self.above}, got {value}")
        if self.high is not None and value > self.high:
            raise ValueError(f"must be at most {self.high}, got {value}")
        return value


def option(default: Any, help: str, *, secret: bool = False, **declared: Any) -> Any:
    """A dataclass field that users set; `declared` are the fields of `Option` from `choices` on."""
    metadata = {"help": help, "declared": declared}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata, repr=not secret)


def options_of(section: type) -> Iterator[Option]:
    """The options of a section in their order; fields without `option()` are derived values and no options."""
    for f in dataclasses.fields(section):
        if "help" in f.metadata:
            default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
            kind, optional = _plain_type(f.type)
            yield Option(
                name=f.name, type=kind, default=default, help=f.metadata["help"], optional=optional, **f.metadata["declared"]
            )


def parse_size(text: str) -> int:
    """An integer with a unit: 12k is 12,000 and 12K is 12 × 1,024 (as in vLLM); 4Gi and 4GiB are binary, 4GB is decimal."""
    match = _SIZE.fullmatch(text.strip().replace("_", ""))
    if match is None:
        raise ValueError(f"must be an integer, with a unit if you like (12k, 4GiB), got {text!r}")
    number, unit, binary, byte = match.groups()
    base = 1024 if binary or (unit.isupper() and not byte) else 1000
    return int(float(number) * base ** _UNITS.get(unit.lower(), 0)) if unit or "." in number else int(number)


def _plain_type(annotation: Any) -> tuple[type, bool]:
    optional = False
    if isinstance(annotation, types.UnionType):
        (annotation,) = [a for a in typing.get_args(annotation) if a is not type(None)]
        optional = True
    return typing.get_origin(annotation) or annotation, optional


def _to_bool(value: object) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {value!r}")
    return value


def _to_int(value: object) -> int:
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"-[0-9]+", value) else parse_size(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be an integer, got {value!r}")
    return value


def _to_float(value: object) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"must be a number, got {value!r}")
    return number


def _to_dict(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        value = _from_json(value)
    if not isinstance(value, dict):
        raise ValueError(f"must be a JSON object such as '{{\"key\": 1}}', got {value!r}")
    return value


def _to_tuple(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = _from_json(value) if value.startswith("[") else [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        raise ValueError(f"must be a list of texts, got {value!r}")
    return tuple(value)


def _from_json(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        raise ValueError(f"must be JSON ({e}), got {text!r}") from e
