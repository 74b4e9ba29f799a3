"""The command `minivllm`: the table of subcommands, and what users read when something is wrong."""

import argparse
import difflib
import importlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from minivllm.engine import spawn
from minivllm.errors import MinivllmError
from minivllm.version import __version__


class Command(NamedTuple):
    """A subcommand, or a group of them if `commands` has some."""

    module: str  # imported only if the command is used: the help and a mistyped command answer at once
    help: str
    commands: Mapping[str, "Command"] = {}
    has_core: bool = False  # it will need an engine core, unless it is only asked for help


COMMANDS = {
    "serve": Command("serve", "serve a model over HTTP with an OpenAI-compatible API", has_core=True),
    "plan": Command("plan", "say what a model would take of this machine, before it is loaded"),
    "chat": Command("chat", "chat with the model of a running server"),
    "complete": Command("complete", "let the model of a running server continue a text"),
    "run-batch": Command("run_batch", "serve the requests of a JSONL file, without a server"),
    "bench": Command(
        "bench",
        "measure a running server, or the engine by itself",
        {
            "serve": Command("bench.serve", "put a load on a running server: latencies, throughput, goodput"),
            "latency": Command("bench.latency", "time one batch of requests, offline"),
            "throughput": Command("bench.throughput", "time many requests given at once, offline"),
        },
    ),
    "collect-env": Command("collect_env", "print what a bug report should say about this machine"),
}

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status: 0, 1 (did not work), 2 (wrong usage), 130 (Ctrl-C)."""
    arguments = [_with_dashes(a) for a in (sys.argv[1:] if argv is None else argv)]
    try:
        return _dispatch("minivllm", "An OpenAI-compatible LLM inference server.", COMMANDS, arguments)
    except MinivllmError as e:
        print(f"minivllm: error: {e.message}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    finally:
        spawn.end_spare()


class Parser(argparse.ArgumentParser):
    """argparse with readable help, and with a suggestion in place of the whole usage when a flag is mistyped."""

    def __init__(self, prog: str):
        width = min(100, shutil.get_terminal_size().columns)
        super().__init__(
            prog=prog,
            allow_abbrev=False,
            add_help=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=width),
        )
        self.add_argument("-h", "--help", action="help", help="Show this help.")

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments:"):
            message += self._suggestion(message.split()[2:])
        self.exit(USAGE, f"minivllm: error: {message}\nSee `{self.prog} --help`.\n")

    def _suggestion(self, unknown: list[str]) -> str:
        known = [flag for action in self._actions for flag in action.option_strings]
        for word in unknown:
            if word.startswith("-"):
                close = difflib.get_close_matches(word.split("=")[0], known, n=1)
                return f" (did you mean {close[0]}?)" if close else ""
        return ""


def _dispatch(prog: str, description: str, commands: Mapping[str, Command], arguments: list[str]) -> int:
    if not arguments or arguments[0] not in commands:
        return _without_command(prog, description, commands, arguments)
    name, *rest = arguments
    command = commands[name]
    if command.commands:
        return _dispatch(f"{prog} {name}", f"{command.help[0].upper()}{command.help[1:]}.", command.commands, rest)
    if command.has_core and not {"-h", "--help"} & set(rest):
        spawn.start_spare()
    module = importlib.import_module(f"minivllm.entrypoints.cli.{command.module}")
    parser = Parser(prog=f"{prog} {name}")
    module.add_options(parser)
    return module.run(parser.parse_args(rest)) or OK


def _without_command(prog: str, description: str, commands: Mapping[str, Command], arguments: list[str]) -> int:
    parser = Parser(prog=prog)
    width = max(map(len, commands))
    parser.description = description
    parser.usage = f"{prog} COMMAND [options]"
    parser.epilog = (
        "commands:\n"
        + "\n".join(f"  {name:{width}}  {command.help}" for name, command in commands.items())
        + f"\n\n`{prog} COMMAND --help` says more."
        + (" To begin: minivllm serve MODEL_FOLDER" if commands is COMMANDS else "")
    )
    parser.add_argument("-v", "--version", action="version", version=f"minivllm {__version__}", help="Show the version.")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    name = parser.parse_known_args(arguments)[0].command
    if name is not None:
        close = difflib.get_close_matches(name, commands, n=1)
        parser.error(f"unknown command {name!r}" + (f" (did you mean {close[0]}?)" if close else ""))
    if arguments:
        parser.parse_args(arguments)  # reports the unknown flag
    parser.print_help()
    return OK


def _with_dashes(argument: str) -> str:
    """--max_model_len means --max-model-len, as vLLM has it."""
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value


if __name__ == "__main__":
    sys.exit(main())
