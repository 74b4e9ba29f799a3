"""`minivllm serve`: the HTTP server. Options come from `AsyncEngineArgs`."""

import argparse
import os
import sys
import tempfile
from typing import NoReturn

import msgspec

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.config.engine_config import EngineConfig
from minivllm.engine import spawn
from minivllm.errors import ConfigError

_NODE = "minivllm.executor.node_process"
EPILOG = """\
Numbers may have a unit: 12k is 12,000 and 12K is 12,288; 4GiB and 500MB for bytes.

Example:
  minivllm serve models/SmolLM2-135M-Instruct --served-model-name smollm2 --max-model-len 4K
  curl http://localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}]}'
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "minivllm serve MODEL [options]"
    parser.description = "Serve a model over HTTP with an OpenAI-compatible API."
    parser.epilog = EPILOG
    parser.add_argument(
        "positional_model", nargs="?", metavar="MODEL", help="Folder of the model, or its name on the hub (or: --model MODEL)."
    )
    AsyncEngineArgs.add_cli_args(parser)


def engine_args_of(args: argparse.Namespace) -> AsyncEngineArgs:
    """Likewise of other commands that begin with the model. Mistakes are told before anything slow is imported."""
    if args.positional_model is not None:
        if getattr(args, "model", args.positional_model) != args.positional_model:
            raise ConfigError(f"two models given: {args.positional_model} and --model {args.model}; give one.", param="model")
        args.model = args.positional_model
    engine_args = AsyncEngineArgs.from_cli_args(args)
    engine_args.resolve()
    return engine_args


def run(args: argparse.Namespace) -> None:
    engine_args = engine_args_of(args)
    if engine_args.headless:
        _become_node(engine_args.resolve())
    import uvloop

    from minivllm.entrypoints.http.lifecycle import run_server

    uvloop.run(run_server(engine_args))


def _become_node(config: EngineConfig) -> NoReturn:
    """This process goes on as `minivllm.executor.node_process`, which finds the config on its stdin."""
    spawn.end_spare()
    with tempfile.TemporaryFile() as file:
        file.write(msgspec.msgpack.encode(config))
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.execv(sys.executable, [sys.executable, "-m", _NODE])
