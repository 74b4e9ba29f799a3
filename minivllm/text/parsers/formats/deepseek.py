"""DeepSeek V3 and V3.1: a section of calls, each with its name in front of the arguments; R1's thoughts."""

import re

from minivllm.text.parsers.format import Format, Layout, Reasoning
from minivllm.text.parsers.header_calls import HeaderCalls

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, NAMED, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

# Both versions are read by both.
_CALLS = HeaderCalls(
    section=(BEGIN, END),
    call_start=CALL,
    call_end=CALL_END,
    header=re.compile(rf"\s*(?:function{NAMED})?\s*(?P<name>[\w.-]+)\s*(?:{NAMED}|```json)?\s*"),
    marks=(NAMED, CALL_END),
)
DEEPSEEK_V3 = Format(
    names=("deepseek_v3",),
    calls=_CALLS,
    layout=Layout(
        trigger=BEGIN, begin=BEGIN, call=(f"{CALL}function{NAMED}", "\n```json\n", f"\n```{CALL_END}"), separator="\n", end=END
    ),
    seen_in=(f"{NAMED}' + tool['function']['name'] + '\\n```json", f"{NAMED}' + tool['function']['name'] + '\\n' + '```json"),
)
DEEPSEEK_V31 = Format(
    names=("deepseek_v31",),
    calls=_CALLS,
    layout=Layout(trigger=BEGIN, begin=BEGIN, call=(CALL, NAMED, CALL_END), separator="", end=END),
    seen_in=(BEGIN,),
)
DEEPSEEK_R1 = Format(names=("deepseek_r1",), reasoning=Reasoning(implicit=True))
