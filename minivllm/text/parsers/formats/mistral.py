"""Mistral: `[TOOL_CALLS]` before a JSON list, or (since version 11 of its tokenizer) before each name; `[THINK]` thoughts."""

import re
import secrets

from minivllm.text.parsers.format import Format, Layout, Reasoning
from minivllm.text.parsers.header_calls import HeaderCalls
from minivllm.text.parsers.json_calls import JsonCalls
from minivllm.text.parsers.writer import ALPHANUMERIC


def new_call_id() -> str:
    """The templates of these models refuse any other form."""
    return "".join(secrets.choice(ALPHANUMERIC) for _ in range(9))


MISTRAL_V11 = Format(
    names=("mistral_v11",),
    calls=HeaderCalls(
        call_start="[TOOL_CALLS]",
        header=re.compile(r"\s*(?P<name>[\w.-]+)\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?(?:\[ARGS\])?\s*"),
        marks=("[CALL_ID]", "[ARGS]"),
    ),
    layout=Layout(trigger="[TOOL_CALLS]", call=("[TOOL_CALLS]", "[ARGS]", ""), separator=""),
    seen_in=("[ARGS]",),
    new_call_id=new_call_id,
)
MISTRAL = Format(
    names=("mistral",),
    calls=JsonCalls(starts=("[TOOL_CALLS]",)),
    layout=Layout(
        trigger="[TOOL_CALLS]", begin="[TOOL_CALLS][", call=('{"name": "', '", "arguments": ', "}"), separator=", ", end="]"
    ),
    reasoning=Reasoning(starts=("[THINK]",), ends=("[/THINK]",)),
    seen_in=("[TOOL_CALLS]",),
    new_call_id=new_call_id,
)
