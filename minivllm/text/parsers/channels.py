"""Answers made of messages with headers, as gpt-oss writes them (the harmony format)."""

import re
from dataclasses import dataclass, field

from minivllm.text.parsers.format import Tools
from minivllm.text.parsers.source import Malformed, Markers, Source, Steps
from minivllm.text.parsers.tool_args import arguments
from minivllm.text.parsers.writer import EventWriter

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, MESSAGE, END, CALL, RETURN, "<|constrain|>")

_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_HEADER_END = Markers(MESSAGE)
_BODY_END = Markers(START, CHANNEL, END, CALL, RETURN)


@dataclass(frozen=True, kw_only=True)
class ChannelReader:
    """Channel "analysis" is thought, a message to a function is a call, all else is text. `header` is what the prompt ends with
    of the first message's header."""

    tools: Tools = field(default_factory=dict)
    header: str = ""

    def __call__(self, source: Source, writer: EventWriter) -> Steps[None]:
        parts = [self.header]
        if not self.header.endswith(MESSAGE):
            found = yield from source.until(_HEADER_END, parts.append)
            if found is None:
                text = "".join(parts)
                if CHANNEL not in text and START not in text:
                    writer.text(text)  # no header at all
                return
        while True:
            yield from self._read_body(source, writer, "".join(parts))
            parts = []
            if (yield from source.until(_HEADER_END, parts.append)) is None:
                return

    def _read_body(self, source: Source, writer: EventWriter, header: str) -> Steps[None]:
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None and self.tools:
            try:
                writer.start_call(recipient[1])
                yield from arguments(source, writer.arguments)
                writer.end_call()
            except Malformed:
                pass  # the call stays incomplete
            found = yield from source.until(_BODY_END, lambda text: None)
        elif recipient is not None or (channel is not None and channel[1] == "analysis"):
            found = yield from source.until(_BODY_END, writer.reasoning)
            writer.end_reasoning()
        else:
            found = yield from source.until(_BODY_END, writer.text)
        if found in (START, CHANNEL):
            source.at -= len(found)  # the next header begins without an end of this message


def make_reader(prompt: str, tools: Tools) -> ChannelReader:
    """A reader of the answer to this prompt, which may end within the header of a message, or within its text."""
    header = prompt[prompt.rfind(START) :] if START in prompt else ""
    if END in header:
        header = ""
    elif MESSAGE in header:
        header = header[: header.find(MESSAGE) + len(MESSAGE)]
    return ChannelReader(tools=tools, header=header)
