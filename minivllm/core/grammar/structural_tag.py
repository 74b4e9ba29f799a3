"""Structural tags → grammars: text that is free until a trigger, and bound from there to the end of its tag.

Both notations are read: `{"structures": […], "triggers": […]}`, and the tree `{"format": {"type": …}}` of newer clients.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from llguidance import LLMatcher

_TEXT = r"/(.|\n)*/"  # special tokens are no text


class StructuralTag:
    """Makes one grammar; `prepare` completes a JSON schema, `to_lark` reads a grammar. ValueError says what is wrong."""

    def __init__(self, special_ids: dict[str, int], prepare: Callable[[Any], dict[str, Any]], to_lark: Callable[[str], str]):
        self._special_ids = special_ids
        self._prepare = prepare
        self._to_lark = to_lark
        self._rules: list[str] = []
        self._parts: list[dict[str, str]] = []  # grammars with terminals of their own

    def grammar(self, tag: Any) -> str:
        if not isinstance(tag, dict):
            raise ValueError("a structural tag must be an object")
        if "format" in tag:
            start = self._element(tag["format"], None)
        else:
            tags = [_from_structure(structure) for structure in _list(tag, "structures")]
            start = self._triggered({"triggers": _list(tag, "triggers", str), "tags": tags}, None)
        lark = "\n".join([f"start: {start}", *self._rules, f"TEXT: {_TEXT}"])
        return json.dumps({"grammars": [{"name": "structural_tag", "lark_grammar": lark}, *self._parts]})

    def _element(self, element: Any, after: str | None) -> str:
        """An expression for one element. `after`: the text that is known to follow it, "" if none is, None at the end."""
        makers = {
            "const_string": lambda: self._literal(_text(element, "value")),
            "json_schema": lambda: self._json(element.get("json_schema")),
            "regex": lambda: self._part(LLMatcher.grammar_from_regex(_text(element, "pattern"))),
            "grammar": lambda: self._part(LLMatcher.grammar_from_lark(self._to_lark(_text(element, "grammar")))),
            "any_text": lambda: self._any_text(after),
            "sequence": lambda: self._sequence(_list(element, "elements"), after),
            "or": lambda: self._either([self._element(each, after) for each in _list(element, "elements")]),
            "tag": lambda: self._tag(element, 0),
            "triggered_tags": lambda: self._triggered(element, after),
            "tags_with_separator": lambda: self._separated(element),
            "text_or_tags": lambda: self._text_or_tags(element, after),
        }
        kind = element.get("type") if isinstance(element, dict) else None
        if kind not in makers:
            raise ValueError(f"an element of type {str(kind)[:50]!r} is not supported; these are: {', '.join(makers)}")
        if element.get("excludes"):
            raise ValueError("`excludes` is not supported")
        return makers[kind]()

    def _literal(self, text: str) -> str:
        """The text; special tokens in it by their ids."""
        parts: list[str] = []
        while text:
            found = min((at, -len(name), name) for name in [*self._special_ids, ""] if (at := _find(text, name)) >= 0)
            at, _, name = found
            if at:
                parts.append(json.dumps(text[:at]))
            if name:
                parts.append(f"<[{self._special_ids[name]}]>")
            text = text[at + len(name) :]
        return " ".join(parts) or '""'

    def _json(self, schema: Any) -> str:
        return f"%json {json.dumps(self._prepare(schema))}"

    def _part(self, grammar: str) -> str:
        lark = json.loads(grammar)["grammars"][0]["lark_grammar"] if grammar.startswith("{") else grammar
        self._parts.append({"name": f"part_{len(self._parts)}", "lark_grammar": lark})
        return f"@{self._parts[-1]['name']}"

    def _any_text(self, after: str | None) -> str:
        if after is None:
            return "TEXT"
        if not after:
            raise ValueError("any_text must be the last element, or be followed by a text that is given")
        return self._until(after)

    def _until(self, text: str) -> str:
        """Free text up to and including `text`."""
        literal = self._literal(text)
        if literal.startswith("<"):
            return f"TEXT {literal}"
        first = literal.partition(" <[")[0]  # a terminal ends where a special token begins
        return f"{self._rule(f'TEXT {first}', lazy=True)} {literal[len(first) :]}"

    def _rule(self, body: str, lazy: bool = False) -> str:
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        name = f"TERMINAL_{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _either(self, bodies: list[str]) -> str:
        return self._rule(" | ".join(bodies))

    def _sequence(self, elements: list[Any], after: str | None) -> str:
        bodies: list[str] = []
        for index, element in enumerate(elements):
            follows = _begin(elements[index + 1]) if index + 1 < len(elements) else after
            kind = element.get("type") if isinstance(element, dict) else None
            if index and isinstance(elements[index - 1], dict) and elements[index - 1].get("type") == "any_text":
                # The free text before it took the beginning along.
                if kind == "tag":
                    bodies.append(self._tag(element, len(_text(element, "begin"))))
            else:
                bodies.append(self._element(element, follows))
        return " ".join(bodies)

    def _tag(self, tag: dict[str, Any], num_written: int) -> str:
        """A tag but for the first `num_written` characters of its beginning."""
        begin, end = _text(tag, "begin", empty=True)[num_written:], _text(tag, "end", empty=True)
        content = tag.get("content")
        body = self._element(content, end)
        # Free text takes the end along.
        taken = isinstance(content, dict) and content.get("type") == "any_text"
        return " ".join([self._literal(begin), body] + ([] if taken else [self._literal(end)]))

    def _triggered(self, element: dict[str, Any], after: str | None) -> str:
        if after is not None:
            raise ValueError("nothing may follow tags with triggers, since text is free between them")
        tags = _list(element, "tags")
        segments = []
        for trigger in _list(element, "triggers", str):
            own = [tag for tag in tags if _text(tag, "begin").startswith(trigger)]
            if not trigger or not own:
                raise ValueError(f"no tag begins with the trigger {trigger[:50]!r}")
            segments.append(f"{self._until(trigger)} {self._either([self._tag(tag, len(trigger)) for tag in own])}")
        if loose := [tag for tag in tags if not _text(tag, "begin").startswith(tuple(_list(element, "triggers", str)))]:
            raise ValueError(f"the tag {_text(loose[0], 'begin')[:50]!r} begins with none of the triggers")
        segment = self._either(segments)
        if element.get("stop_after_first"):
            return segment if element.get("at_least_one") else self._either([segment, "TEXT"])
        return f"{segment}{'+' if element.get('at_least_one') else '*'} TEXT"

    def _separated(self, element: dict[str, Any]) -> str:
        tag = self._either([self._tag(each, 0) for each in _list(element, "tags")])
        more = "" if element.get("stop_after_first") else f" ({self._literal(_text(element, 'separator', empty=True))} {tag})*"
        return f"({tag}{more}){'' if element.get('at_least_one') else '?'}"

    def _text_or_tags(self, element: dict[str, Any], after: str | None) -> str:
        """One of the tags, or text that begins like none of them. Behind the first of `marks` a tag may come later, too."""
        if after is not None:
            raise ValueError("nothing may follow text_or_tags, since its text is free")
        begins, bodies = [], []
        for tag in _list(element, "tags"):
            begin = _text(tag, "begin")
            begins.append(_spaced(begin))
            bodies.append(f"{self._terminal(begins[-1])} {self._tag(tag, len(begin))}")
        tags = self._either(bodies)
        marks = _list(element, "marks", str) if "marks" in element else ["", ""]
        if len(marks) != 2:
            raise ValueError("`marks` must be two texts")
        opening, closing = map(self._literal, marks)
        banned = f"({' | '.join(begins)}) TEXT"
        if opening.startswith('"') and opening != '""':  # no special token: it would pass for text
            banned += f" | TEXT {opening} TEXT"
        text = self._terminal(f"TEXT & ~({banned})")
        later = [f"{text} {opening} {tags} {closing}"] if opening.startswith("<") else []
        return self._either([tags, text, *later])


def _from_structure(structure: dict[str, Any]) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": structure.get("schema")}
    return {"begin": structure.get("begin"), "content": content, "end": structure.get("end")}


def _begin(element: Any) -> str:
    """The text with which an element begins for certain."""
    kind = element.get("type") if isinstance(element, dict) else None
    return _text(element, "value") if kind == "const_string" else _text(element, "begin") if kind == "tag" else ""


def _find(text: str, name: str) -> int:
    return text.find(name) if name else len(text)


def _spaced(text: str) -> str:
    """A terminal for the text with any white space around its words and signs."""
    parts = [re.escape(part).replace("/", r"\/") for part in re.findall(r"\w+|[^\w\s]", text)]
    return "/" + "".join(rf"\s*{part}" for part in parts) + "/"


def _text(element: Any, name: str, empty: bool = False) -> str:
    value = element.get(name) if isinstance(element, dict) else None
    if isinstance(value, list) and len(value) == 1:  # some write the only possible end as a list
        value = value[0]
    if not isinstance(value, str) or not (value or empty):
        raise ValueError(f"`{name}` must be a text" + ("" if empty else ", and not empty"))
    return value


def _list(element: Any, name: str, kind: type = dict) -> list[Any]:
    value = element.get(name) if isinstance(element, dict) else None
    if not isinstance(value, list) or not value or not all(isinstance(each, kind) for each in value):
        raise ValueError(f"`{name}` must be a list of {'texts' if kind is str else 'objects'}, and not empty")
    return value
