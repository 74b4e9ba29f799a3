"""`minivllm complete`: a running server continues a text, in the terminal."""

import argparse
from collections.abc import Iterator

from minivllm.entrypoints.cli.client import Client, add_client_options
from minivllm.entrypoints.cli.terminal import read_lines, show


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Let the model of a running server continue each line that you enter. Ctrl-C stops, Ctrl-D ends."
    add_client_options(parser)
    parser.add_argument("--max-tokens", type=int, metavar="N", help="Length of the continuation, in tokens.")
    parser.add_argument("-q", "--quick", metavar="TEXT", help="Continue this text, print the continuation, and end.")


def run(args: argparse.Namespace) -> int:
    client = Client(args)
    if args.quick is not None:
        return show(continuation(client, args.quick, args.max_tokens)).status
    for line in read_lines("> "):
        show(continuation(client, line, args.max_tokens))
    return 0


def continuation(client: Client, prompt: str, max_tokens: int | None) -> Iterator[str]:
    limits = {} if max_tokens is None else {"max_tokens": max_tokens}
    for choice in client.stream("/completions", prompt=prompt, **limits):
        yield choice.get("text") or ""
