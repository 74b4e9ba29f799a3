"""Phi-4-mini: a JSON list between `<|tool_call|>` tags, or after `functools`."""

from minivllm.text.parsers.format import Format, Layout
from minivllm.text.parsers.json_calls import JsonCalls

PHI4_MINI = Format(
    names=("phi4_mini_json", "phi4_mini"),
    calls=JsonCalls(starts=("<|tool_call|>", "functools"), ends=("<|/tool_call|>",)),
    layout=Layout(
        trigger="<|tool_call|>",
        begin="<|tool_call|>[",
        call=('{"name": "', '", "arguments": ', "}"),
        separator=", ",
        end="]<|/tool_call|>",
    ),
    seen_in=("<|/tool|>",),
)
