"""Every wire form of a constraint, as it reaches the engine, and the refusals."""

import json

import pytest
from fakes import Client, FakeEngine

from minivllm.errors import ClientError
from minivllm.messages.structured_outputs import MAX_CHOICES, MAX_SIZE, StructuredOutputsParams

CHAT, COMP = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"const": "ü"}}}
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    return Client(engine)


def post(client, path, fields):
    base = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    return client.post(path, base | fields)


@pytest.mark.parametrize("path", [CHAT, COMP])
@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json", SCHEMA),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, "json", SCHEMA),
        ({"response_format": {"type": "structural_tag", **TAG}}, "structural_tag", {"type": "structural_tag", **TAG}),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, "json", SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json", SCHEMA),
        ({"structured_outputs": {"regex": "a+"}, "response_format": {"type": "text"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", ["a", "b"]),
        ({"structured_outputs": {"grammar": "start: A"}}, "grammar", "start: A"),
        ({"structured_outputs": {"json_object": True}}, "json_object", True),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "structural_tag", TAG),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "xgrammar"}, "json", SCHEMA),
        ({"guided_regex": "[0-9]"}, "regex", "[0-9]"),
        ({"guided_choice": ["a"]}, "choice", ["a"]),
        ({"guided_grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"structural_tag": TAG}, "structural_tag", TAG),
    ],
)  # fmt: skip
def test_constraints_reach_the_engine(client, engine, path, fields, kind, value):
    assert post(client, path, fields).status_code == 200
    form = engine.requests[-1][1].structured_outputs
    got = getattr(form, kind)
    assert form.kind == kind and (json.loads(got) if kind in ("json", "structural_tag") else got) == value
    if kind == "json":
        assert list(json.loads(got)["properties"]) == ["z", "a"]  # the order of keys is the order of the answer


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}, {"guided_json": None}]
)
def test_no_constraint(client, engine, fields):
    assert post(client, CHAT, fields).status_code == 200
    assert engine.requests[-1][1].structured_outputs is None


def deep(levels):
    return {"type": "array", "items": deep(levels - 1)} if levels else {}


@pytest.mark.parametrize("path", [CHAT, COMP])
@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema",
         "When response_format type is 'json_schema', the 'json_schema' field must be provided."),
        ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.json_schema", "must be provided"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema", "schema"),
        ({"response_format": {"type": "banana"}}, "response_format.type", "banana"),
        ({"response_format": "text"}, "response_format", "dictionary"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": deep(40)}}}, None, ""),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": deep(65)}}}, "response_format", "too deep"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "it has regex, choice"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs", "it has none"),
        ({"structured_outputs": {"banana": 1}}, "structured_outputs.banana", "banana"),
        ({"structured_outputs": {"reasoning_end": [1], "regex": "a"}}, "structured_outputs.reasoning_end", "reasoning_end"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs", "regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "choice"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice", "choice"),
        ({"structured_outputs": {"choice": ["a"] * (MAX_CHOICES + 1)}}, "structured_outputs.choice", "at most"),
        ({"structured_outputs": {"regex": "a" * (MAX_SIZE + 1)}}, "structured_outputs.regex", "at most"),
        ({"structured_outputs": {"regex": "(" * 65 + ")" * 65}}, "structured_outputs.regex", "nested too deep"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "Only one of guided_json, guided_regex"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "response_format", "Only one of"),
    ],
)  # fmt: skip
def test_refusals(client, path, fields, param, message):
    reply = post(client, path, fields)
    if param is None:
        assert reply.status_code == 200
        return
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param) and message in error["message"]


@pytest.mark.parametrize("form", [{"regex": "\ud800"}, {"choice": ["a", "\ud800"]}, {"json": {"const": "\ud800"}}])
def test_text_that_is_not_unicode_is_refused(form):
    with pytest.raises(ClientError, match=r"surrogate"):
        StructuredOutputsParams(**form)
