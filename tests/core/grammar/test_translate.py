"""What each kind of form lets through and what it does not."""

import re

import pytest

RECORD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
CLOSED = RECORD | {"additionalProperties": False}
GBNF = r"""
root ::= item ("," ws item)*   # a list
item ::= [a-c]{2} | "\u00e9" | "\"" [^"\\]* "\""
ws ::= " "?
"""
TOOLS = {
    "structures": [
        {"begin": "<fn=add>", "schema": CLOSED, "end": "</fn>"},
        {"begin": "<fn=now>", "schema": {"const": {}}, "end": "</fn>"},
    ],
    "triggers": ["<fn="],
}


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ({"regex": r"[ab]{3}-[0-9]"}, ["aba-7"], ["ab-7", "aba-77", "x"]),
        ({"regex": r"^(x|/)+$"}, ["x/x"], ["", "y"]),
        ({"choice": ["yes", "yes please", 'a "b"\n', "\x7f🐢"]}, ["yes", "yes please", 'a "b"\n', "\x7f🐢"], ["yes p", "no"]),
        ({"json_object": True}, ["{}", '{"x": [1, null]}'], ["[]", "1", "{} "]),
        ({"json": RECORD}, ['{"a":1}', '{"a": 1,\n    "b": "ü"}', '{"a":1,"c":1}'], ['{"b":""}', '{"a":"1"}', '{"a":1,"b":2}']),
        ({"json": CLOSED}, ['{"a":1}'], ['{"a":1,"c":2}']),
        ({"json": RECORD, "disable_additional_properties": True}, ['{"a":1}'], ['{"a":1,"c":2}']),
        ({"json": RECORD, "disable_any_whitespace": True}, ['{"a":1}'], ['{"a": 1}']),
        ({"json": RECORD, "whitespace_pattern": "[ ]{2}"}, ['{  "a":  1}'], ['{ "a": 1}']),
        ({"json": True}, ["[1]", "null"], ["x"]),
        ({"json": {"type": "array", "items": {"enum": [1, "ß"]}, "uniqueItems": False}}, ['[1, "ß"]'], ["[2]"]),
        ({"json": {"type": "string", "format": "password"}}, ['"x"'], ["1"]),
        ({"json": {"properties": {"format": {"const": "byte"}}}}, ['{"format":"byte"}'], ['{"format":1}']),
        ({"json": {"const": "\x01"}}, [r'"\u0001"'], ['"\x01"']),
        ({"grammar": "start: A B?\nA: /[0-9]+/\nB: \"px\" | \"em\""}, ["12", "12px"], ["px"]),
        ({"grammar": GBNF}, ["ab,cc", 'é, "x y"'], ["a", '"', "é,  é"]),
        ({"structural_tag": TOOLS}, ["plain", 'ok <fn=add>{"a": 2}</fn>, <fn=now>{}</fn>'], ["<fn=sub>{}</fn>", "<fn=now>"]),
    ],
    ids=lambda value: re.sub(r"\W+", " ", str(value))[:40],
)  # fmt: skip
def test_forms(forms, form, right, wrong):
    grammar = forms.grammar(**form)
    assert [text for text in right if not forms.takes(grammar, text)] == []
    assert [text for text in wrong if forms.takes(grammar, text)] == []


def test_white_space_is_bounded(forms):
    """A model that only wants to write blanks or line breaks gets to the end of a gap."""
    for blank in (" ", "\n", "\t"):
        grammar = forms.grammar(json={"type": "array", "items": {"type": "integer"}})
        assert forms.follow(grammar, forms.tokenizer.encode("[1,"))
        tokens = forms.tokenizer.encode(blank * 60)
        assert not forms.follow(grammar, tokens)


def test_an_escaped_spelling_of_a_key_is_no_other_key(forms):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    assert forms.accepts('{"b": "x"}', json=schema)
    assert not forms.accepts(r'{"\u0061": "x"}', json=schema)


def element(kind, **fields):
    return {"type": kind, **fields}


TAG = element("tag", begin="<a>", content=element("json_schema", json_schema={"type": "integer"}), end="</a>")
ONE = {"at_least_one": True, "stop_after_first": True}
THINK = element("tag", begin="<t>", content=element("any_text"), end="</t>")


@pytest.mark.parametrize(
    ("tree", "right", "wrong"),
    [
        (element("const_string", value="a/b"), ["a/b"], ["a"]),
        (element("regex", pattern="[a-z]/[0-9]"), ["x/1"], ["x1"]),
        (element("grammar", grammar='root ::= "x" | "y"'), ["x", "y"], ["xy"]),
        (element("or", elements=[element("const_string", value="l"), TAG]), ["l", "<a>12</a>"], ["<a>x</a>"]),
        (element("sequence", elements=[THINK, TAG]), ["<t>a < b</t><a>1</a>"], ["<a>1</a>", "<t>a</t>"]),
        (element("sequence", elements=[element("any_text"), TAG]), ["so: <a>1</a>", "<a>1</a>"], ["so"]),
        (element("tags_with_separator", tags=[TAG], separator=";"), ["", "<a>1</a>;<a>2</a>"], ["<a>1</a><a>2</a>"]),
        (element("tags_with_separator", tags=[TAG], separator=";", **ONE), ["<a>1</a>"], ["", "<a>1</a>;<a>2</a>"]),
        (element("triggered_tags", triggers=["<a"], tags=[TAG]), ["x", "x <a>1</a> y"], ["x <a>y"]),
        (element("triggered_tags", triggers=["<a"], tags=[TAG], at_least_one=True), ["x <a>1</a> y"], ["x"]),
        (element("triggered_tags", triggers=["<a"], tags=[TAG], **ONE), ["x <a>1</a>"], ["x", "x <a>1</a> y"]),
    ],
)  # fmt: skip
def test_structural_tag_trees(forms, tree, right, wrong):
    grammar = forms.grammar(structural_tag={"type": "structural_tag", "format": tree})
    assert [text for text in right if not forms.takes(grammar, text)] == []
    assert [text for text in wrong if forms.takes(grammar, text)] == []


def test_a_special_token_in_a_tag_is_that_token(forms):
    tag = element("tag", begin="<|end|>x", content=element("const_string", value="y"), end="")
    grammar = forms.grammar(structural_tag={"format": tag})
    x, y = forms.tokenizer.encode("x")[0], forms.tokenizer.encode("y")[0]
    assert forms.follow(grammar.copy(), [forms.tokenizer.eos_token_id, x, y])
    assert not forms.follow(grammar.copy(), [x, y])


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": "3"}, "must be an object"),
        ({"json": False}, "allows nothing"),
        ({"json": {"uniqueItems": True}}, "uniqueItems"),
        ({"json": {"not": {}}}, "not"),
        ({"json": {"not": {}, "x-guidance": {"lenient": True}}}, "not"),
        ({"json": {"type": "string", "format": "uri-reference"}}, "uri-reference"),
        ({"json": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, "oneOf"),
        ({"json": {"$ref": "http://example.com/x"}}, "example.com"),
        ({"json": {"$ref": "#"}}, "no text can match"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum"),
        ({"grammar": "start: foo"}, "foo"),
        ({"grammar": 'rule ::= "a"'}, "root"),
        ({"structural_tag": "[]"}, "must be an object"),
        ({"structural_tag": {"structures": [], "triggers": ["x"]}}, "structures"),
        ({"structural_tag": {"structures": TOOLS["structures"], "triggers": ["<g"]}}, "trigger"),
        ({"structural_tag": {"format": element("banana")}}, "banana"),
        ({"structural_tag": {"format": element("sequence", elements=[element("any_text"), element("any_text")])}}, "any_text"),
    ],
    ids=lambda value: re.sub(r"\W+", " ", str(value))[:40],
)  # fmt: skip
def test_what_cannot_be_kept_to_is_refused(forms, form, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        forms.grammar(**form)
