"""GLM 4.5 and 4.6: the name at once behind `<tool_call>`, a pair of tags for each argument."""

from minivllm.text.parsers.format import Format, Layout, Reasoning
from minivllm.text.parsers.xml_calls import XmlCalls

GLM45 = Format(
    names=("glm45", "glm47"),
    calls=XmlCalls(
        starts=("<tool_call>",),
        ends=("</tool_call>",),
        name=None,
        call_end=None,
        key=("<arg_key>", "</arg_key>"),
        value=("<arg_value>", "</arg_value>"),
    ),
    layout=Layout(
        trigger="<tool_call>",
        call=("<tool_call>", "\n", "</tool_call>"),
        argument=("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        raw_texts=True,
    ),
    reasoning=Reasoning(),
    seen_in=("<arg_key>",),
)
