"""`EngineArgs` and `AsyncEngineArgs`: all options by their flat names. Used by `LLM`, the CLI and the HTTP server."""

import argparse
import difflib
from functools import cached_property
from typing import Any, TypeVar

from minivllm.config import cli, resolve
from minivllm.config.engine_config import ENGINE_SECTIONS, EngineConfig
from minivllm.config.option import Option, options_of
from minivllm.config.sections.server import ServerConfig
from minivllm.errors import ConfigError

T = TypeVar("T", bound="EngineArgs")


class EngineArgs:
    """Options of the engine, each by its flat name: `EngineArgs("folder", max_model_len="4k", block_size=32)`.

    Values may be text as on the command line. None and absent options take their defaults. Raises `ConfigError` for an
    unknown name or a value out of range; what depends on the model is checked by `resolve()`.
    """

    sections: tuple[type, ...] = tuple(ENGINE_SECTIONS.values())
    _server = False

    def __init__(self, model: str | None = None, **options: Any):
        known = self.options()
        self.given: dict[str, Any] = {}  # what the user gave, checked
        self._resolved: EngineConfig | None = None
        for name, value in {"model": model, **options}.items():
            if name not in known:
                raise ConfigError(_unknown(name, known), param=name)
            if value is not None:
                try:
                    self.given[name] = known[name].check(value)
                except ValueError as e:
                    raise ConfigError(f"{name} {e}.", param=name, value=value) from e

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each option, grouped by section, and --config."""
        return cli.add_flags(parser, cls.sections)

    @classmethod
    def from_cli_args(cls: type[T], args: argparse.Namespace) -> T:
        """From parsed flags; a --config file fills in the options that no flag gives."""
        return cls(**cli.given_options(args, cls.options()))

    @classmethod
    def options(cls) -> dict[str, Option]:
        """All options of this class by name, in the order of their sections."""
        return {o.name: o for section in cls.sections for o in options_of(section)}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in (known := type(self).options()):
            return self.given.get(name, known[name].default)
        raise AttributeError(f"{type(self).__name__} has no option {name!r}")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.given.items() if not name.endswith("api_key"))
        return f"{type(self).__name__}({shown})"

    def resolve(self) -> EngineConfig:
        """The complete configuration, made once; `ConfigError` with one line that says what to change."""
        if self._resolved is None:
            self._resolved = resolve.resolve_engine(self.given, server=self._server)
        return self._resolved


class AsyncEngineArgs(EngineArgs):
    """Options of the engine and of the HTTP server in front of it."""

    sections = (EngineArgs.sections[0], ServerConfig, *EngineArgs.sections[1:])  # in the order of the help
    _server = True

    @cached_property
    def server(self) -> ServerConfig:
        return resolve.resolve_server({o.name: self.given[o.name] for o in options_of(ServerConfig) if o.name in self.given})


def _unknown(name: str, known: dict[str, Option]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"unknown option {name!r}" + (f": did you mean {close[0]!r}?" if close else ".")
