"""`minivllm chat`: a conversation with a running server, in the terminal."""

import argparse
import sys
from collections.abc import Iterator

from minivllm.entrypoints.cli.client import Client, add_client_options
from minivllm.entrypoints.cli.terminal import read_lines, show

Message = dict[str, str]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Chat with the model of a running server. Ctrl-C stops an answer, Ctrl-D ends the chat."
    add_client_options(parser)
    parser.add_argument("--system-prompt", metavar="TEXT", help="Instruction that stands before the conversation.")
    parser.add_argument("-q", "--quick", metavar="TEXT", help="Send this one message, print the answer, and end.")


def run(args: argparse.Namespace) -> int:
    client = Client(args)
    messages: list[Message] = []
    if args.system_prompt:
        messages.append({"role": "system", "content": args.system_prompt})
    if args.quick is not None:
        messages.append({"role": "user", "content": args.quick})
        return show(answer(client, messages)).status
    if sys.stdin.isatty():
        print(f"Chatting with {client.model}. Ctrl-C stops an answer, Ctrl-D ends.")
    for line in read_lines("> "):
        messages.append({"role": "user", "content": line})
        messages.append({"role": "assistant", "content": show(answer(client, messages)).text})
    return 0


def answer(client: Client, messages: list[Message]) -> Iterator[str]:
    for choice in client.stream("/chat/completions", messages=messages):
        yield choice["delta"].get("content") or ""
