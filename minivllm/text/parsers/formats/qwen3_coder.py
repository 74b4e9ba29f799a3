"""Qwen3-Coder: a tag for the function and one for each argument."""

from minivllm.text.parsers.format import Format, Layout
from minivllm.text.parsers.xml_calls import XmlCalls

QWEN3_CODER = Format(
    names=("qwen3_coder", "qwen3_xml"),
    calls=XmlCalls(
        starts=("<tool_call>",),
        ends=("</tool_call>",),
        name=("<function=", ">"),
        call_end="</function>",
        key=("<parameter=", ">"),
        value=("", "</parameter>"),
        on_lines=True,
    ),
    layout=Layout(
        trigger="<tool_call>",
        call=("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"),
        argument=("<parameter=", ">\n", "\n</parameter>\n"),
        raw_texts=True,
    ),
    seen_in=("<function=",),
)
