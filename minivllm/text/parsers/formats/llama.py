"""Llama 3.1 and later: one JSON object as the whole answer, several with semicolons between; or a Python list of calls."""

from minivllm.text.parsers.format import Format, Layout
from minivllm.text.parsers.json_calls import JsonCalls
from minivllm.text.parsers.python_calls import PythonCalls

LLAMA3_JSON = Format(
    names=("llama3_json", "llama4_json"),
    calls=JsonCalls(starts=("<|python_tag|>",), bare="{[`"),
    layout=Layout(trigger='{"name": "', call=('{"name": "', '", "parameters": ', "}"), separator="; "),
    seen_in=("<|python_tag|>", '{"name": function name, "parameters": dictionary'),
)
PYTHONIC = Format(
    names=("pythonic", "llama4_pythonic"),
    calls=PythonCalls(starts=("<|python_start|>",), ends=("<|python_end|>",)),
    layout=Layout(
        begin="[",
        call=("", "(", ")"),
        separator=", ",
        end="]",
        argument=("", "=", ""),
        argument_separator=", ",
        marks=("<|python_start|>", "<|python_end|>"),
    ),
    seen_in=("<|python_start|>", "[func_name"),
)
