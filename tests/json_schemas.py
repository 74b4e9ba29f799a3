"""Two hundred JSON schemas from a few generators, for tests of structured output. `SCHEMAS` is a dict by name."""

import itertools
from typing import Any

Schema = dict[str, Any]

STRINGS: dict[str, Schema] = {
    "short": {"type": "string", "maxLength": 12},
    "sized": {"type": "string", "minLength": 3, "maxLength": 8},
    "digits": {"type": "string", "pattern": "^[0-9]{3}-[0-9]{4}$"},
    "unanchored": {"type": "string", "pattern": "[xyz][0-9]", "maxLength": 10},
    "either": {"type": "string", "pattern": "^(north|south)-(east|west)$"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "moment": {"type": "string", "format": "date-time"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "uuid": {"type": "string", "format": "uuid"},
    "email": {"type": "string", "format": "email", "maxLength": 30},
}
NUMBERS: dict[str, Schema] = {
    "integer": {"type": "integer", "minimum": -5, "maximum": 120},
    "year": {"type": "integer", "exclusiveMinimum": 1899, "exclusiveMaximum": 2101},
    "positive": {"type": "integer", "minimum": 1, "maximum": 10**9},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "range": {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2.25},
    "fives": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 500},
}
OTHERS: dict[str, Schema] = {
    "truth": {"type": "boolean"},
    "nothing": {"type": "null"},
    "maybe": {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    "colour": {"enum": ["red", "green", "blue", None, 7, {"mixed": [1, 2]}]},
    "fixed": {"const": {"kind": "fixed", "ünï": ["ß", 1.5, None]}},
    "word": {"const": 'straße 🐢 "quoted" \\ \n'},
}
LEAVES = STRINGS | NUMBERS | OTHERS


def record(fields: dict[str, Schema], **more: Any) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False} | more


def array(items: Schema, least: int = 0, most: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _flat() -> dict[str, Schema]:
    """Each leaf at top level, in a record, in an array, and optional among others."""
    found: dict[str, Schema] = {}
    for name, leaf in LEAVES.items():
        found[f"{name} alone"] = leaf
        found[f"{name} in record"] = record({"value": leaf})
        found[f"{name} in array"] = array(leaf, 1, 3)
        found[f"{name} optional"] = {**record({"id": NUMBERS["integer"], name: leaf}), "required": ["id"]}
    return found


def _nested() -> dict[str, Schema]:
    """Records in arrays in records, as deep as three levels."""
    found: dict[str, Schema] = {}
    for (a, left), (b, right) in itertools.islice(zip(LEAVES.items(), list(LEAVES.items())[5:], strict=False), 8):
        found[f"matrix of {a}"] = array(array(left, 1, 2), 1, 2)
        found[f"deep {a} {b}"] = record({"outer": record({"list": array(record({"a": left, "b": right}), 1, 2)})})
    return found


def _combined() -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    leaves = list(LEAVES.items())
    for index in range(12):
        (a, left), (b, right) = leaves[index], leaves[(index * 5 + 11) % len(leaves)]
        found[f"anyOf {index}"] = record({"value": {"anyOf": [left, right]}})
        found[f"oneOf {index}"] = {
            "oneOf": [record({"kind": {"const": "a"}, a: left}), record({"kind": {"const": "b"}, b: right})]
        }
        found[f"allOf {index}"] = {
            "type": "object",
            "allOf": [{"properties": {"a": left}, "required": ["a"]}, {"properties": {"b": right}, "required": ["b"]}],
            "properties": {"a": True, "b": True},
            "additionalProperties": False,
        }  # fmt: skip
    return found


def _referring() -> dict[str, Schema]:
    """$ref and recursion. A way out comes first in each choice, or a text of random tokens might never end."""
    found: dict[str, Schema] = {}
    for name in ("short", "digits", "integer", "share", "truth", "colour", "date", "fives"):
        leaf = LEAVES[name]
        found[f"ref to {name}"] = {
            **record({"x": {"$ref": "#/$defs/leaf"}, "y": {"$ref": "#/$defs/leaf"}}),
            "$defs": {"leaf": leaf},
        }
        tree = record({"value": leaf, "children": array({"$ref": "#/$defs/tree"}, 0, 2)})
        found[f"tree of {name}"] = {"$defs": {"tree": tree}, "$ref": "#/$defs/tree"}
        chain = {"anyOf": [{"type": "null"}, record({"head": leaf, "tail": {"$ref": "#"}})]}
        found[f"chain of {name}"] = chain
    return found


def _maps() -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for name in ("short", "integer", "share", "truth"):
        leaf = LEAVES[name]
        found[f"map of {name}"] = {"type": "object", "additionalProperties": leaf, "maxProperties": 2}
        found[f"open record of {name}"] = {
            "type": "object", "properties": {"id": leaf}, "required": ["id"], "additionalProperties": {"type": "boolean"},
        }  # fmt: skip
        found[f"keys by pattern of {name}"] = {
            "type": "object", "patternProperties": {"^n_[a-z]{1,3}$": leaf}, "additionalProperties": False,
        }  # fmt: skip
        found[f"at least one of {name}"] = {
            "type": "object",
            "additionalProperties": leaf,
            "minProperties": 1,
            "maxProperties": 2,
        }
    return found


def _other() -> dict[str, Schema]:
    keys = ["größe", "名前", "clé", "🐢", 'a "b"', "back\\slash", "", "new\nline", "/"]
    found = {f"key {key!r}": record({key: LEAVES["integer"], "z": LEAVES["truth"]}) for key in keys}
    found["tuple"] = {"type": "array", "prefixItems": [LEAVES["date"], LEAVES["share"]], "items": False, "minItems": 2}
    found["tuple and more"] = {
        "type": "array", "prefixItems": [LEAVES["truth"]], "items": LEAVES["integer"], "minItems": 1, "maxItems": 3,
    }  # fmt: skip
    found["two kinds"] = {"type": ["boolean", "string"], "maxLength": 6}
    found["many optional"] = {
        "type": "object", "properties": {f"p{i}": LEAVES["truth"] for i in range(30)}, "additionalProperties": False,
    }  # fmt: skip
    found["unused words"] = {
        "type": "integer",
        "title": "T",
        "description": 'a "d" {',
        "default": 3,
        "examples": [1],
        "maximum": 99,
    }
    found["nullable record"] = {"anyOf": [record({"a": LEAVES["uuid"]}), {"type": "null"}]}
    found["definitions"] = {"definitions": {"n": LEAVES["year"]}, **record({"n": {"$ref": "#/definitions/n"}})}
    return found


SCHEMAS: dict[str, Schema] = {**_other(), **_referring(), **_maps(), **_combined(), **_nested(), **_flat()}
