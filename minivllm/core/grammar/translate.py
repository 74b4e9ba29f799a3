"""`StructuredOutputsParams` → a grammar as llguidance reads it. Runs in `checker`: texts of users are parsed here."""

import json
import re
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from minivllm.core.grammar.structural_tag import StructuralTag
from minivllm.messages.structured_outputs import StructuredOutputsParams

# What may stand between JSON's tokens: a blank, or a line break with its indentation. Bounded, so that every text goes on.
WHITESPACE = r" |\r?\n(\t{0,8}| {0,32})"
# Formats of OpenAPI that say how a value is stored or shown, not which strings are valid.
_ANNOTATIONS = {"int32", "int64", "float", "double", "byte", "binary", "password"}
# Without \u: a key spelled with it would pass for an additional one beside the same key among `properties`.
_ESCAPES = 'nrbtf\\"'
_NEEDS_U = re.compile(r"\\u00[01]")  # control characters cannot be written in another way
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_GBNF_CODE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")


def translate(params: StructuredOutputsParams, special_ids: dict[str, int]) -> str:
    """The grammar, not compiled. `special_ids`: special tokens that the texts may name. ValueError says what is wrong."""
    kind = params.kind
    text: Any = getattr(params, kind)
    if kind == "json":
        return json_grammar(text, params)
    if kind == "json_object":
        return json_grammar('{"type": "object"}', params)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "choice":
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, text)))
    if kind == "grammar":
        return LLMatcher.grammar_from_lark(to_lark(text))
    return StructuralTag(special_ids, lambda schema: _prepared(schema, params), to_lark).grammar(_parse(text))


def json_grammar(schema: str, params: StructuredOutputsParams) -> str:
    return LLMatcher.grammar_from_json_schema(_prepared(_parse(schema), params))


def to_lark(grammar: str) -> str:
    """A grammar in Lark or GBNF, as Lark."""
    if not _GBNF_RULE.search(grammar):
        return grammar
    try:
        return gbnf_to_lark(_GBNF_CODE.sub(_plain_character, grammar))
    except RecursionError as error:
        raise ValueError("the grammar is nested too deep") from error
    except Exception as error:  # the converter raises bare Exception
        raise ValueError(str(error)) from error


def _plain_character(match: re.Match[str]) -> str:
    """A \\u escape of GBNF as the character itself, or as \\x where that would mean something else."""
    code = int(match[2] or match[3], 16)
    return match[1] + (f"\\x{code:02x}" if code < 128 else chr(code))


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON: {error}") from error


def _prepared(schema: Any, params: StructuredOutputsParams) -> dict[str, Any]:
    """The schema with the way it is to be written; without what says nothing about validity."""
    if schema is False:
        raise ValueError("the schema `false` allows nothing")
    if schema is not True and not isinstance(schema, dict):
        raise ValueError("a JSON schema must be an object")
    clean = _clean(schema, params.disable_additional_properties) if isinstance(schema, dict) else {}
    options: dict[str, Any] = {"whitespace_pattern": WHITESPACE}
    if isinstance(given := clean.pop("x-guidance", None), dict):
        options |= given
    if params.whitespace_pattern is not None:
        options["whitespace_pattern"] = params.whitespace_pattern
    if params.disable_any_whitespace:
        options["whitespace_pattern"], options["whitespace_flexible"] = None, False
    if not _NEEDS_U.search(json.dumps(clean)):
        options["json_allowed_escapes"] = _ESCAPES
    # Never leave out a keyword in silence.
    return {**clean, "x-guidance": options | {"lenient": False, "coerce_one_of": False}}


def _clean(schema: dict[str, Any], closed: bool) -> dict[str, Any]:
    """A copy of a schema, with those inside it; `closed`: no properties but those that are named."""
    clean: dict[str, Any] = {}
    for key, value in schema.items():
        if (key == "format" and value in _ANNOTATIONS) or (key == "uniqueItems" and value is False):
            continue
        if key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas") and isinstance(value, dict):
            value = {name: _clean(part, closed) if isinstance(part, dict) else part for name, part in value.items()}
        elif key not in ("const", "enum", "default", "examples"):
            if isinstance(value, dict):
                value = _clean(value, closed)
            elif isinstance(value, list):
                value = [_clean(part, closed) if isinstance(part, dict) else part for part in value]
        clean[key] = value
    if closed and ("properties" in clean or clean.get("type") == "object"):
        clean.setdefault("additionalProperties", False)
    return clean
