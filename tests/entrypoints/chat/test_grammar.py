"""Tool choice as a grammar: what each format may write then, token by token, and what not."""

import json
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from minivllm.core.grammar.guidance import GuidanceCompiler
from minivllm.core.grammar.translate import translate
from minivllm.entrypoints.chat.grammar import arguments_schema, constrain
from minivllm.entrypoints.chat.tool_choice import Tool, ToolUse
from minivllm.errors import ClientError
from minivllm.messages.structured_outputs import StructuredOutputsParams
from minivllm.text.parsers.format import Format
from minivllm.text.parsers.registry import FORMATS

CALLING = [each for each in FORMATS if each.layout is not None]
PARIS = {"city": 'Paris "1"', "days": 3}
TOOLS = [
    Tool(
        name="get_weather",
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
            "required": ["city"],
        },
    ),
    Tool(name="now"),
    Tool(
        name="add",
        strict=True,
        parameters={"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
    ),
]
WRONG = [("get_weather", {"days": 3}), ("get_weather", {"city": "a", "days": "b"}), ("other", {}), ("now", {"x": 1})]
CALLS = [("get_weather", PARIS), ("now", {}), ("add", {"b": "x"}), ("add", {}), ("get_weather", {"city": "a", "unit": "C"})]


@cache
def compiler(folder: Path) -> tuple[Tokenizer, GuidanceCompiler]:
    """The tokenizer of the demo model, which knows the marks of every format as a token; as special ones, where they are."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    marks = [mark for each in CALLING for mark in each.marks]
    special = [mark for mark in marks if mark.startswith(("<|", "<｜", "["))]
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in special])
    tokenizer.add_tokens([AddedToken(mark) for mark in marks if mark not in special])
    added = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items()}
    return tokenizer, GuidanceCompiler(tokenizer.to_str(), [2], added, tokenizer.get_vocab_size())


def allows(folder: Path, params: StructuredOutputsParams, text: str) -> bool:
    tokenizer, made = compiler(folder)
    grammar = made.compile(translate(params, made.special_ids))
    for token in [*tokenizer.encode(text, add_special_tokens=False).ids, 2]:
        row = bytearray(grammar.mask_size)
        grammar.write_mask(memoryview(row))
        if not row[token // 8] >> token % 8 & 1:
            return False
        grammar.accept(token)
    assert grammar.error is None
    return True


def form(each: Format, given: StructuredOutputsParams | None = None, **use: bool) -> StructuredOutputsParams | None:
    assert each.layout is not None
    return constrain(ToolUse(tools=TOOLS, **use), each.layout, given)


@pytest.mark.parametrize("each", CALLING, ids=lambda each: each.names[0])
def test_each_format(each: Format, smollm2: Path) -> None:
    layout = each.layout
    assert layout is not None
    one, many = layout.write_all(CALLS[:1]), layout.write_all(CALLS)
    wrong = [layout.write_all([call]) for call in WRONG]
    required = form(each, required=True)
    assert required is not None and allows(smollm2, required, one)
    assert allows(smollm2, required, many) == layout.parallel
    assert not any(allows(smollm2, required, text) for text in [*wrong, "Hello", one[:-1], f"Hello {one}"])
    single = form(each, required=True, parallel=False)
    assert single is not None and allows(smollm2, single, one) and not allows(smollm2, single, many)
    strict = form(each)
    if layout.trigger is not None:
        assert strict is not None and allows(smollm2, strict, f"Let me see.\n{many}") and allows(smollm2, strict, "Hello")
        assert not any(allows(smollm2, strict, f"So: {text}") for text in wrong)
    # A form that the user asks for is that of answers which are no calls.
    number = StructuredOutputsParams(
        json={"type": "object", "properties": {"n": {"type": "integer"}}}, origin="response_format"
    )
    if each.names[0] == "llama3_json":
        with pytest.raises(ClientError, match="plain JSON"):
            form(each, number)
        return
    both = form(each, number)
    assert both is not None and allows(smollm2, both, layout.answer + '{"n": 5}') and allows(smollm2, both, one)
    assert not any(allows(smollm2, both, text) for text in [*wrong, "Hello"])


ONE = '[get_weather(city="Paris")]'
HEAD = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"
REST = "<|message|>Hm, to=functions.x<|end|><|start|>assistant"
THOUGHT, PREAMBLE = f"<|channel|>analysis{REST}", f"<|channel|>commentary{REST}"


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        (
            "pythonic",
            [
                "Hello", "[1, 2]", "[get_weather] is one [get_weather()", ONE, f"\n{ONE}", ONE[:-1] + ", now(), add(a=1)]",
                f"Well.<|python_start|>{ONE}<|python_end|>",
            ],
            ["[get_weather(city=3)]", "[ get_weather (city=3)]", "[now(), other()]", f"{ONE} Well.", "[get_weather("],
        ),
        (
            "gpt_oss",
            [
                "<|channel|>final<|message|>Hello to=functions.other", f"{PREAMBLE}<|channel|>final<|message|>Hello",
                THOUGHT + PREAMBLE + HEAD.format("now") + "{}", "<|channel|>commentary<|message|>Hello",
                ' to=functions.add<|channel|>commentary <|constrain|>json<|message|>{"a": 1}',
            ],
            [
                HEAD.format("other") + "{}", PREAMBLE + HEAD.format("now") + '{"x": 1}', HEAD.format("add") + '{"a": ""}',
                " to=functions.other<|channel|>commentary <|constrain|>json<|message|>{}", "Hello",
            ],
        ),
    ],
)  # fmt: skip
def test_strict_calls_without_a_mark(name: str, right: list[str], wrong: list[str], smollm2: Path) -> None:
    """They begin an answer, or a message of it: what begins otherwise is free."""
    strict = form(next(each for each in CALLING if each.names[0] == name))
    assert strict is not None
    assert [text for text in right if not allows(smollm2, strict, text)] == []
    assert [text for text in wrong if allows(smollm2, strict, text)] == []


def test_no_grammar_without_need() -> None:
    for each in CALLING:
        assert each.layout is not None
        assert constrain(ToolUse(tools=TOOLS[:2]), each.layout, None) is None
        assert constrain(None, each.layout, None) is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"json_object": True}, '{"a": 1}'),
        ({"regex": "a+"}, "aaa"),
        ({"choice": ["yes", "no"]}, "no"),
        ({"grammar": 'start: "x"'}, "x"),
    ],
)
def test_any_form_beside_tools(given: dict, text: str, smollm2: Path) -> None:
    hermes = next(each for each in CALLING if "hermes" in each.names)
    params = form(hermes, StructuredOutputsParams(**given, origin="structured_outputs"))
    assert params is not None and params.blamed_field == "structured_outputs"
    assert allows(smollm2, params, text) and not allows(smollm2, params, "other text")
    with pytest.raises(ClientError) as refusal:
        form(hermes, StructuredOutputsParams(structural_tag={"format": {"type": "any_text"}}, origin="structural_tag"))
    assert refusal.value.param == "structural_tag"


def test_schemas_are_closed_and_loose_unless_strict() -> None:
    part = {"type": "object", "properties": {"y": {}}}
    schema = {
        "properties": {"x": {"type": "array", "items": part, "uniqueItems": True}, "free": {"type": "object"}},
        "$defs": {"d": part},
        "not": {},
    }
    closed = part | {"additionalProperties": False}
    wanted = {
        "type": "object",
        "properties": {"x": {"type": "array", "items": closed}, "free": {"type": "object"}},
        "additionalProperties": False,
        "$defs": {"d": closed},
    }
    assert arguments_schema(Tool(name="f", parameters=schema)) == wanted
    apart = {"allOf": [part, part], "properties": {"z": part}}
    assert arguments_schema(Tool(name="f", parameters=apart)) == {"type": "object", **apart, "properties": {"z": closed}}
    assert arguments_schema(Tool(name="f", parameters={"$ref": "#/$defs/d"})) == {"type": "object", "$ref": "#/$defs/d"}
    strict = arguments_schema(Tool(name="f", parameters=schema, strict=True))
    assert strict["not"] == {} and strict["properties"]["x"]["uniqueItems"] is True
    assert json.dumps(arguments_schema(Tool(name="f"))) == '{"type": "object", "properties": {}, "additionalProperties": false}'
