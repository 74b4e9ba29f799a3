"""IBM Granite 3: a JSON list after `<|tool_call|>`; thoughts between two sentences, or tags."""

from minivllm.text.parsers.format import Format, Layout, Reasoning
from minivllm.text.parsers.json_calls import JsonCalls

GRANITE = Format(
    names=("granite",),
    calls=JsonCalls(starts=("<|tool_call|>", "<tool_call>"), bare="{[`"),
    layout=Layout(
        trigger="<|tool_call|>", begin="<|tool_call|>[", call=('{"name": "', '", "arguments": ', "}"), separator=", ", end="]"
    ),
    reasoning=Reasoning(
        starts=("Here is my thought process:", "Here's my thought process:", "<think>"),
        ends=("Here is my response:", "Here's my response:", "</think>"),
        dropped=("<response>", "</response>"),
    ),
    seen_in=("<|tool_call|>", "my thought process"),
)
