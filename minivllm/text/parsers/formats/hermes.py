"""Hermes 2 Pro, Qwen2.5, Qwen3, Granite 4 and many more: JSON between `<tool_call>` tags, thoughts between `<think>` tags."""

from minivllm.text.parsers.format import Format, Layout, Reasoning
from minivllm.text.parsers.json_calls import JsonCalls

HERMES = Format(
    names=("hermes", "qwen25", "qwen3_json", "granite4"),
    calls=JsonCalls(starts=("<tool_call>",), ends=("</tool_call>",), bare="{[`"),
    layout=Layout(trigger="<tool_call>", call=('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")),
    seen_in=("<tool_call>",),
)
QWEN3 = Format(names=("qwen3",), reasoning=Reasoning(), seen_in=("</think>",))
