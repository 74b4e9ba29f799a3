"""What `bench latency` and `bench throughput` share: engine options, the `LLM`, random prompts, the result's file."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minivllm.config.engine_args import EngineArgs
from minivllm.errors import ConfigError

if TYPE_CHECKING:
    from minivllm.entrypoints.llm import LLM


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("positional_model", nargs="?", metavar="MODEL", help="Folder or hub name (or: --model MODEL).")
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="Write the figures to this file, too.")
    parser.add_argument("--disable-tqdm", action="store_true", help="No progress bar.")
    EngineArgs.add_cli_args(parser)


def load_llm(args: argparse.Namespace, **defaults: Any) -> "LLM":
    """The model that the options name; `defaults` hold where the user gave nothing else."""
    if args.positional_model is not None:
        if getattr(args, "model", args.positional_model) != args.positional_model:
            raise ConfigError(f"two models given: {args.positional_model} and --model {args.model}; give one.", param="model")
        args.model = args.positional_model
    engine_args = EngineArgs.from_cli_args(args)
    engine_args.resolve()  # mistakes are told before anything slow is imported
    from minivllm.entrypoints.llm import LLM

    return LLM(**{**defaults, **engine_args.given})


def write_json(path: Path | None, figures: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(figures, indent=1))
