"""Kimi K2: a section of numbered calls; the number is part of the call's id, which the template shows to the model again."""

import re

from minivllm.text.parsers.format import Format, Layout, Reasoning
from minivllm.text.parsers.header_calls import HeaderCalls

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, NAMED, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

KIMI_K2 = Format(
    names=("kimi_k2",),
    calls=HeaderCalls(
        section=(BEGIN, END),
        call_start=CALL,
        call_end=CALL_END,
        header=re.compile(rf"\s*(?P<id>(?:functions\.)?(?P<name>[\w.-]+?):\d+)\s*{re.escape(NAMED)}\s*"),
        marks=(NAMED, CALL_END),
    ),
    layout=Layout(
        trigger=BEGIN, begin=BEGIN, call=(f"{CALL}functions.", NAMED, CALL_END), separator="", end=END, numbered=True
    ),
    reasoning=Reasoning(ended_by_calls=True),
    seen_in=(BEGIN,),
)
