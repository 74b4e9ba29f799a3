"""`minivllm run-batch`: the requests of a JSONL file, in the format of OpenAI's batches, served without a server."""

import argparse
from pathlib import Path
from typing import IO

from tqdm import tqdm

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.entrypoints.batches.lines import InvalidLines, Line, read_lines, result_line
from minivllm.entrypoints.batches.runner import serve_lines
from minivllm.errors import ConfigError

EPILOG = """\
Each line of the input is one request:
  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
The output has a line for each, in the same order, with the status and the answer.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "minivllm run-batch -i INPUT -o OUTPUT --model MODEL [options]"
    parser.description = "Serve all requests of a JSONL file and write the answers."
    parser.epilog = EPILOG
    parser.add_argument("-i", "--input-file", required=True, metavar="FILE", help="Requests, one a line.")
    parser.add_argument("-o", "--output-file", required=True, metavar="FILE", help="Where the answers go.")
    AsyncEngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> None:
    source, target = Path(args.input_file), Path(args.output_file)
    del args.input_file, args.output_file
    engine_args = AsyncEngineArgs.from_cli_args(args)
    engine_args.resolve()  # mistakes are told before anything slow is imported
    try:
        lines = read_lines(source, None)
    except OSError as e:
        raise ConfigError(f"-i {source}: {e.strerror}.") from e
    except InvalidLines as e:
        shown = "; ".join(f"line {error.line}: {error.message}" if error.line else error.message for error in e.errors[:5])
        raise ConfigError(f"-i {source}: {shown}") from e
    import uvloop

    try:
        with target.open("wb") as output:
            uvloop.run(_serve(engine_args, lines, output))
    except OSError as e:
        raise ConfigError(f"-o {target}: {e.strerror}.") from e


async def _serve(args: AsyncEngineArgs, lines: list[tuple[Line, str]], output: IO[bytes]) -> None:
    from minivllm.engine.async_engine import AsyncLLMEngine
    from minivllm.entrypoints.http.app import background_call

    engine = AsyncLLMEngine.from_engine_args(args)
    try:
        await engine.start()
        writer = _InOrder([line for line, _ in lines], output)
        with tqdm(total=len(lines), desc="Requests", unit="request") as progress:

            def write(line: Line, status: int, body: bytes) -> None:
                writer.write(line, status, body)
                progress.update()

            concurrency = min(len(lines), 2 * engine.config.scheduler.max_num_seqs)
            await serve_lines(background_call(engine, args.server), lines, concurrency, write)
        print(f"{len(lines) - writer.num_refused} of {len(lines)} requests served, {writer.num_refused} refused")
    finally:
        engine.shutdown()


class _InOrder:
    """Writes results in the order of their requests, each as soon as all before it are there."""

    def __init__(self, lines: list[Line], output: IO[bytes]):
        self.num_refused = 0
        self._order = iter(lines)
        self._next = next(self._order, None)
        self._ready: dict[str, bytes] = {}
        self._output = output

    def write(self, line: Line, status: int, body: bytes) -> None:
        self.num_refused += status != 200
        self._ready[line.custom_id] = result_line(line, status, body)
        while self._next is not None and self._next.custom_id in self._ready:
            self._output.write(self._ready.pop(self._next.custom_id))
            self._next = next(self._order, None)
        self._output.flush()
