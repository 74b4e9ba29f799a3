"""Tool calls and thoughts in every format: any way to cut the text gives the same answer, and it is the right one."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.text.parsers.events import ChatEvent, ReasoningDelta, TextDelta, ToolArgsDelta, ToolCallStart
from minivllm.text.parsers.format import Format
from minivllm.text.parsers.registry import FORMATS, REASONING_PARSERS, TOOL_PARSERS, choose

CALLING = sorted({each.names[0] for each in FORMATS if each.calls is not None})
TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"}},
    },
    "now": {"type": "object", "properties": {}},
}
Call = tuple[str, dict[str, Any]]
Answer = tuple[str, str, list[tuple[str, str]], str]  # text, reasoning, (name, arguments) of the calls, finish reason


def write_call(form: Format, call: Call, number: int) -> str:
    """A call as the model would write it."""
    layout, (name, arguments) = form.layout, call
    assert layout is not None
    before, between, after = layout.call
    if layout.argument is None:
        written = json.dumps(arguments, ensure_ascii=number % 2 == 0)
    else:
        texts = [
            (key, value if layout.raw_texts and isinstance(value, str) else json.dumps(value))
            for key, value in arguments.items()
        ]
        one, two, three = layout.argument
        written = layout.argument_separator.join(f"{one}{key}{two}{text}{three}" for key, text in texts)
    return f"{before}{name}{f':{number}' if layout.numbered else ''}{between}{written}{after}"


def write_calls(form: Format, calls: list[Call]) -> str:
    assert form.layout is not None
    return form.layout.begin + form.layout.separator.join(write_call(form, c, n) for n, c in enumerate(calls)) + form.layout.end


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
    assert form.calls is not None and form.layout is not None
    layout = form.layout
    marks = [
        *form.calls.starts,
        *form.calls.ends,
        *form.calls.marks,
        layout.begin,
        layout.end,
        *layout.call,
        *(layout.argument or ()),
    ]
    pieces = [mark for mark in marks if mark]
    pieces += [mark[: len(mark) // 2] for mark in pieces] + list("[]{}(),;:'\"\\\n =") + ["get_weather", "now", "city", "Paris"]
    pieces += ['{"city": "a"}', '"name"', '"arguments"', "true", "-1.5e3", "<think>", "</think>", "f(x=1)"]
    pieces += [write_call(form, ("get_weather", {"city": "é"}), 0)]
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
    tool = name if form.calls is not None else "hermes"
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
