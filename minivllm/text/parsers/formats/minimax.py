"""MiniMax M2: `<invoke>` tags between `<minimax:tool_call>` tags."""

from minivllm.text.parsers.format import Format, Layout, Reasoning
from minivllm.text.parsers.xml_calls import XmlCalls

MINIMAX = Format(
    names=("minimax_m2", "minimax"),
    calls=XmlCalls(
        starts=("<minimax:tool_call>",),
        ends=("</minimax:tool_call>",),
        name=('<invoke name="', '">'),
        call_end="</invoke>",
        key=('<parameter name="', '">'),
        value=("", "</parameter>"),
    ),
    layout=Layout(
        trigger="<minimax:tool_call>",
        begin="<minimax:tool_call>\n",
        call=('<invoke name="', '">\n', "</invoke>\n"),
        separator="",
        end="</minimax:tool_call>",
        argument=('<parameter name="', '">', "</parameter>\n"),
        raw_texts=True,
    ),
    reasoning=Reasoning(),
    seen_in=("<minimax:tool_call>",),
)
