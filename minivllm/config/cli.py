"""Options to command-line flags and back. Used by `AsyncEngineArgs`."""

import argparse
import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from minivllm.config.option import AUTO, Option, options_of
from minivllm.errors import ConfigError


def add_flags(parser: argparse.ArgumentParser, sections: Iterable[type]) -> argparse.ArgumentParser:
    """One argument group per section. Absent flags stay absent from the namespace."""
    parser.add_argument(
        "--config",
        metavar="FILE.yaml",
        default=argparse.SUPPRESS,
        help="Options from a file, as lines of `name: value`; flags win over them.",
    )
    for section in sections:
        group = parser.add_argument_group(section.__doc__)
        for option in options_of(section):
            _add_flag(group, option)
    return parser


def given_options(args: argparse.Namespace, known: Mapping[str, Option]) -> dict[str, Any]:
    """What the user gave by flag, else in the --config file."""
    flags = {name: value for name, value in vars(args).items() if name in known}
    for name, value in flags.items():
        if known[name].type is tuple:
            flags[name] = tuple(item for text in value for item in known[name].check(text))
    path = getattr(args, "config", None)
    return {**(_read_file(path, known) if path else {}), **flags}


def _add_flag(group: Any, option: Option) -> None:
    keywords: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS, "help": _help(option)}
    flags = [option.short, option.flag] if option.short else [option.flag]
    if option.type is bool:
        # Both forms work, so that a flag can undo a --config file; where the default is off, only one is worth showing.
        if option.default:
            group.add_argument(*flags, action=argparse.BooleanOptionalAction, **keywords)
        else:
            group.add_argument(*flags, action="store_const", const=True, **keywords)
            group.add_argument(
                "--no-" + option.flag[2:], action="store_const", const=False, **{**keywords, "help": argparse.SUPPRESS}
            )
        return
    if option.type is tuple:
        keywords |= {"nargs": "+", "action": "extend"}
    keywords["metavar"] = option.metavar or ("{" + ",".join(option.choices) + "}" if option.choices else _metavar(option))
    group.add_argument(*flags, type=_converter(option), **keywords)


def _metavar(option: Option) -> str:
    return {int: "N", float: "X", dict: "JSON"}.get(option.type, "TEXT")


def _help(option: Option) -> str:
    text = option.help
    if option.type is bool:
        text += " (default: on)" if option.default else ""
    elif option.default and option.default != AUTO and "Default:" not in text:
        shown = option.default if isinstance(option.default, (str, int)) else f"{option.default:g}"
        text += f" (default: {shown})"
    return text.replace("%", "%%")


def _converter(option: Option) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = option.check(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(str(e)) from e
        return text if option.type is tuple else value  # the texts of a list are put together in given_options

    return convert


def _read_file(path: str, known: Mapping[str, Option]) -> dict[str, Any]:
    import yaml  # only here: most starts do not need it, and it takes as long as the rest of this package

    try:
        content = yaml.safe_load(Path(path).expanduser().read_text()) or {}
    except OSError as e:
        raise ConfigError(f"cannot read --config {path}: {e.strerror}.", param="config") from e
    except yaml.YAMLError as e:
        raise ConfigError(f"--config {path} is not YAML: {' '.join(str(e).split())}", param="config") from e
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path} must hold `name: value` lines.", param="config")
    options = {str(key).removeprefix("--").replace("-", "_"): value for key, value in content.items()}
    for name, value in options.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {close[0].replace('_', '-')!r}?" if close else "."
            raise ConfigError(f"--config {path}: unknown option {name.replace('_', '-')!r}{hint}", param="config")
        if known[name].type is str and isinstance(value, (int, float)) and not isinstance(value, bool):
            options[name] = str(value)
    return options
