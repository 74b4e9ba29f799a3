"""Tool calls and thoughts in every format: any way to cut the text gives the same answer, and it is the right one."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.errors import ConfigError
from minivllm.text.parsers.events import ChatEvent, ReasoningDelta, TextDelta, ToolArgsDelta, ToolCallStart
from minivllm.text.parsers.format import Format
from minivllm.text.parsers.registry import FORMATS, REASONING_PARSERS, TOOL_PARSERS, choose

CALLING = sorted({each.names[0] for each in FORMATS if each.layout is not None})
TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"}},
    },
    "now": {"type": "object", "properties": {}},
}
Call = tuple[str, dict[str, Any]]
Answer = tuple[str, str, list[tuple[str, str]], str]  # text, reasoning, (name, arguments) of the calls, finish reason


def write_calls(form: Format, calls: list[Call]) -> str:
    assert form.layout is not None
    return form.layout.write_all(calls)


def parse(
    pieces: list[str], name: str, reason: str = "stop", reasoning: str = "auto", prompt: str = "", **options: Any
) -> Answer:
    parser = choose("", {}, name, "none" if reasoning == "auto" else reasoning).parser(0, prompt, tools=TOOLS, **options)
    assert parser is not None
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    return (*fold(events), parser.finish_reason(reason))


def fold(events: list[ChatEvent]) -> tuple[str, str, list[tuple[str, str]]]:
    text = reasoning = ""
    calls: list[list[str]] = []
    for event in events:
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, ReasoningDelta):
            reasoning += event.text
        elif isinstance(event, ToolCallStart):
            assert event.call == len(calls)
            calls.append([event.name, ""])
        elif isinstance(event, ToolArgsDelta):
            assert event.call == len(calls) - 1 and event.text
            calls[-1][1] += event.text
    return text, reasoning, [(name, arguments) for name, arguments in calls]


def cut(text: str, places: list[float]) -> list[str]:
    borders = [0, *sorted(int(place * len(text)) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(borders)]


values = st.text(st.characters(codec="utf-8", exclude_characters="<>[]|｜"), max_size=12)
arguments = st.fixed_dictionaries(
    {"city": values},
    optional={"days": st.integers(-99, 99), "more": st.dictionaries(st.sampled_from("ab"), values, max_size=2)},
)
calls = st.lists(st.one_of(st.tuples(st.just("get_weather"), arguments), st.just(("now", {}))), min_size=1, max_size=3)
places = st.lists(st.floats(0, 1, exclude_max=True), max_size=12)


@pytest.mark.parametrize("name", CALLING)
@settings(max_examples=40, deadline=None)
@given(calls=calls, places=places)
def test_calls_come_out_as_they_went_in(name: str, calls: list[Call], places: list[float]) -> None:
    text = write_calls(TOOL_PARSERS[name], calls)
    expected = parse([text], name)
    assert parse(cut(text, places), name) == expected
    assert parse(list(text), name) == expected
    assert (expected[0], expected[3]) == ("", "tool_calls")
    assert [(name, json.loads(arguments)) for name, arguments in expected[2]] == calls


def near(form: Format) -> st.SearchStrategy[str]:
    """Texts made of the format's own pieces: what models write when they go wrong."""
    assert form.layout is not None
    layout = form.layout
    marks = [
        *form.marks,
        layout.begin,
        layout.end,
        *layout.call,
        *(layout.argument or ()),
    ]
    pieces = [mark for mark in marks if mark]
    pieces += [mark[: len(mark) // 2] for mark in pieces] + list("[]{}(),;:'\"\\\n =") + ["get_weather", "now", "city", "Paris"]
    pieces += [
        "```",
        "```json\n",
        '{"name": "now", "arguments": {}}',
        '{"city": "a"}',
        '"name"',
        '"arguments"',
        "true",
        "-1.5e3",
        "<think>",
        "</think>",
        "f(x=1)",
    ]
    pieces += [layout.write("get_weather", {"city": "é"})]
    return st.lists(st.sampled_from(pieces), max_size=14).map("".join)


@pytest.mark.parametrize("name", CALLING)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), places=places)
def test_any_chunking_folds_to_the_same_answer(name: str, data: st.DataObject, places: list[float]) -> None:
    form = TOOL_PARSERS[name]
    text = data.draw(near(form))
    reasoning = form.names[0] if form.reasoning is not None else "qwen3"
    for options in ({}, {"reasoning": reasoning}, {"max_calls": 1}):
        whole = parse([text], name, **options)
        assert parse(cut(text, places), name, **options) == whole
        assert parse(list(text), name, **options) == whole
        if whole[3] == "tool_calls":
            assert whole[2] and all(isinstance(json.loads(arguments), dict) for _, arguments in whole[2])


@pytest.mark.parametrize("name", CALLING)
def test_a_truncated_call_is_no_tool_call(name: str) -> None:
    text = write_calls(TOOL_PARSERS[name], [("get_weather", {"city": "Paris", "days": 3})])
    for length in range(len(text)):
        _, _, found, reason = parse([text[:length]], name, "length")
        assert reason == "length"
        if parse([text[:length]], name)[3] == "tool_calls":  # all that is missing is an end mark
            assert [(n, json.loads(a)) for n, a in found] == [("get_weather", {"city": "Paris", "days": 3})]
    assert parse([text], name, "abort")[3] == "abort"


@pytest.mark.parametrize("name", sorted({each.names[0] for each in REASONING_PARSERS.values()} - {"gpt_oss"}))
@settings(max_examples=30, deadline=None)
@given(places=places)
def test_thoughts(name: str, places: list[float]) -> None:
    form = REASONING_PARSERS[name]
    tool = name if form.layout is not None else "hermes"
    assert form.reasoning is not None
    start, end = form.reasoning.starts[0], form.reasoning.ends[0]
    thought = "\nFirst, a < b.\n\nThen"
    call = write_calls(TOOL_PARSERS[tool], [("now", {})])
    wanted = ("Yes: <b>.\n", "First, a < b.\n\nThen", [], "stop")
    for text, prompt in ((f"{start}{thought}\n{end}\n\nYes: <b>.\n", ""), (f"{thought}\n{end}\n\nYes: <b>.\n", f"…{start}\n")):
        assert parse(cut(text, places), tool, reasoning=name, prompt=prompt) == wanted
    assert parse(cut(f"{start}{thought}{end}{call}", places), tool, reasoning=name) == (
        "",
        wanted[1],
        [("now", "{}")],
        "tool_calls",
    )
    assert parse(cut(f"{start}{thought} \n", places), tool, "length", reasoning=name) == ("", wanted[1] + " \n", [], "length")
    # Thoughts that the prompt has ended already, and marks in the middle of a text, are none.
    plain = f"Write {start}x{end}."
    prompt = f"{start}\n\n{end}\n\n"
    assert parse(cut(plain, places), tool, reasoning=name, prompt=prompt)[:2] == (plain, "")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"name": "now", "arguments": {}}', ["now"]),
        ('```json\n{"name": "now", "arguments": {}}\n```', ["now"]),
        ('```\n{"name": "now", "arguments": {}}\n```\n```json\n{"name": "now", "parameters": {}}\n```', ["now", "now"]),
        ('{"name": "now"}', []),  # a name alone is an answer
        ('{"name": "Ann", "arguments": {}}', []),  # so is another name
        ('Like {"name": "now", "arguments": {}}', []),
        ("```python\nprint(1)\n```", []),
        ('[{"city": "Paris"}]', []),
        ("{not JSON", []),
    ],
)
@pytest.mark.parametrize("name", ["hermes", "llama3_json", "granite"])
def test_calls_without_marks(name: str, text: str, wanted: list[str]) -> None:
    content, _, found, reason = parse(list(text), name)
    assert [each for each, _ in found] == wanted
    assert (content, reason) == (("", "tool_calls") if wanted else (text, "stop"))


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', '{"a": 1}'),
        ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', "{}"),
        (
            "hermes",
            '<tool_call>{"name": "now", "arguments": {"a": "line\nbreak \\d"}}</tool_call>',
            '{"a": "line\\nbreak \\\\d"}',
        ),
        (
            "hermes",
            '<tool_call>{"type": "function", "function": {"name": "now", "parameters": {"a": 1}}}</tool_call>',
            '{"a": 1}',
        ),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}}}\n</tool_call>', "{}"),
        ("mistral_v11", "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}", "{}"),
        ("phi4_mini_json", 'functools[{"name": "now", "arguments": {}}]', "{}"),
        ("qwen3_coder", "<tool_call><function=now><parameter=x>\n[1, 2]\n</parameter></function></tool_call>", '{"x": [1,2]}'),
        (
            "qwen3_coder",
            "<tool_call><function=get_weather><parameter=city>\n12\n</parameter></tool_call>",
            '{"city": "12"}',
        ),
        ("glm45", "<tool_call>now</tool_call>", "{}"),
        ("pythonic", "[now(a=None, b=true, c=-1.5, d=('x', {'k': []}))]", '{"a":null,"b":true,"c":-1.5,"d":["x",{"k":[]}]}'),
    ],
)
def test_what_models_make_of_it(name: str, text: str, wanted: str) -> None:
    _, _, found, reason = parse(list(text), name)
    assert [arguments for _, arguments in found] == [wanted] and reason == "tool_calls"
    json.loads(wanted)


def test_broken_calls_are_no_calls() -> None:
    content, _, found, reason = parse(['So: <tool_call>{"name": 5}</tool_call>.'], "hermes")
    assert (content, found, reason) == ('So: <tool_call>{"name": 5}</tool_call>.', [], "stop")
    _, _, found, reason = parse(['<tool_call>{"name": "now", "arguments": {"a": oops!}}</tool_call>Bye'], "hermes")
    assert (found, reason) == ([("now", '{"a": oops')], "stop")


def test_special_tokens_are_seen_and_not_shown() -> None:
    special = {"[TOOL_CALLS]": 5, "[THINK]": 6, "[/THINK]": 7, "</s>": 2}
    dialect = choose("[TOOL_CALLS][THINK]", special)
    assert (dialect.mark_ids(with_calls=True), dialect.mark_ids(with_calls=False)) == ([5, 6, 7], [6, 7])
    text = "Well[/THINK] [TOOL_CALLS]what? [THINK]"
    for show, wanted in ((False, "Well what?"), (True, text)):
        parser = dialect.parser(0, "", tools=TOOLS, show_special=show)
        assert parser is not None
        assert fold([*parser.feed(text), *parser.finish()])[0].rstrip() == wanted


def test_harmony() -> None:
    text = (
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
        "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}"
    )
    assert parse(list(text), "gpt_oss", reasoning="gpt_oss") == ("One moment.", "Think.", [("now", "{}")], "tool_calls")
    text = "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    assert parse(list(text), "gpt_oss", reasoning="gpt_oss") == ("Yes.", "Think.", [], "stop")
    header = "…<|start|>assistant<|channel|>final<|message|>"
    assert parse(list("Yes."), "gpt_oss", reasoning="gpt_oss", prompt=header) == ("Yes.", "", [], "stop")


@pytest.mark.parametrize(
    ("template", "calls", "reasoning"),
    [
        ('…<tool_call>\\n{"name"…', "hermes", None),
        ("…<tool_call>…</think>…", "hermes", "qwen3"),
        ("…<tool_call>\\n<function=…", "qwen3_coder", None),
        ("…<tool_call>…<arg_key>…</think>", "glm45", "glm45"),
        ("…<minimax:tool_call>…<think>\\n", "minimax_m2", "minimax_m2"),
        ("…<|tool_calls_section_begin|>…</think>", "kimi_k2", "kimi_k2"),
        (
            "…<｜tool▁calls▁begin｜>…<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json…</think>",
            "deepseek_v3",
            "qwen3",
        ),
        ("…<｜tool▁calls▁begin｜>…</think>", "deepseek_v31", "qwen3"),
        ("…[TOOL_CALLS]…", "mistral", None),
        ("…[TOOL_CALLS]…[ARGS]…[THINK]", "mistral_v11", "mistral"),
        ("…<|tool|>…<|/tool|>…", "phi4_mini_json", None),
        ("…<|tool_call|>…Here is my thought process:…", "granite", "granite"),
        ("…<|python_tag|>…", "llama3_json", None),
        ("…<|python_start|>…", "pythonic", None),
        ("…<|channel|>analysis<|message|>…", "gpt_oss", "gpt_oss"),
        ("<|im_start|>", "hermes", None),
    ],
)
def test_templates_tell_the_format(template: str, calls: str, reasoning: str | None) -> None:
    dialect = choose(template, {})
    assert (dialect.calls.names[0], dialect.reasoning and dialect.reasoning.names[0]) == (calls, reasoning)


def test_unknown_names() -> None:
    for flags in (("nope", "auto"), ("auto", "nope")):
        with pytest.raises(ConfigError, match=r"must be one of auto, .*got 'nope'"):
            choose("", {}, *flags)
    named = choose("<arg_key></think>", {}, "hermes", "deepseek_r1")
    assert (named.calls.names[0], named.reasoning and named.reasoning.names[0]) == ("hermes", "deepseek_r1")
    assert named.starts_thinking("<|assistant|>") and not named.starts_thinking("<think></think>\n")
