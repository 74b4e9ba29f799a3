"""`StructuredOutputsParams`: the form that the tokens of one request must take. A field of `SamplingParams`."""

import re
from itertools import accumulate
from typing import Any, NoReturn

import msgspec

from minivllm.errors import ClientError

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
MAX_SIZE = 256 * 1024  # characters of a schema, regex or grammar
MAX_DEPTH = 64  # of a schema's objects and arrays, and of parentheses
MAX_CHOICES = 4096

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\\.|\[\^?[()\[{}]\]', re.DOTALL)
_BRACKET = re.compile(r"[()\[\]{}]")
_encode = msgspec.json.Encoder().encode


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Exactly one of the first six says what the whole answer must be; names and meanings are vLLM's.

    `ClientError` for what can be seen to be wrong without compiling it; what cannot be compiled is refused by the core.
    """

    json: str | dict[str, Any] | bool | None = None  # a JSON schema; kept as text
    regex: str | None = None  # the whole answer matches it
    choice: list[str] | None = None  # the answer is one of these
    grammar: str | None = None  # Lark (with the rule `start`), or GBNF as in llama.cpp (with the rule `root`)
    json_object: bool | None = None  # any JSON object
    structural_tag: str | dict[str, Any] | None = None  # free text, but what follows a trigger is bound; kept as text
    disable_any_whitespace: bool = False  # JSON on one line, without blanks
    disable_additional_properties: bool = False  # as if every object of the schema said "additionalProperties": false
    whitespace_pattern: str | None = None  # a regex: what may stand between JSON's tokens, in place of a few blanks
    # Until the output holds `reasoning_end` (token ids, e.g. of "</think>") anything but an end of text may come, and the form
    # begins after it. With `reasoning_start` the model may leave out its thoughts: the output begins with these ids and goes on
    # until `reasoning_end`, or it has the form from its first token.
    reasoning_end: list[int] | None = None
    reasoning_start: list[int] | None = None
    origin: str | None = None  # field of the user's request that this was made from, for errors

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) not in (None, False) or (name == "json" and self.json is False)]
        if len(given) != 1:
            names = ", ".join(given) if given else "none"
            self._refuse(f"must have exactly one of {', '.join(KINDS)}; it has {names}.", given[-1] if given else None)
        kind = given[0]
        if kind == "choice":
            self._check_choice()
        elif kind != "json_object":
            self._check_text(kind)
        if self.whitespace_pattern is not None:
            self._check_text("whitespace_pattern")
        if self.whitespace_pattern is not None and self.disable_any_whitespace:
            self._refuse("whitespace_pattern and disable_any_whitespace exclude each other.", "whitespace_pattern")
        if self.reasoning_start and not self.reasoning_end:
            self._refuse("reasoning_start needs reasoning_end.", "reasoning_start")

    @property
    def kind(self) -> str:
        """Which of the six it is."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    @property
    def blamed_field(self) -> str:
        """What an error of the grammar names as the field to change."""
        return self.origin or f"structured_outputs.{self.kind}"

    def _check_text(self, kind: str) -> None:
        value = getattr(self, kind)
        if kind in ("json", "structural_tag") and isinstance(value, (dict, bool)):
            try:
                value = _encode(value).decode()
            except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
                self._refuse(f"{kind} cannot be written as JSON: {error}", kind)
            setattr(self, kind, value)
        if not isinstance(value, str):
            self._refuse(f"{kind} must be a text, not {type(value).__name__}.", kind)
        if not value:
            self._refuse(f"{kind} must not be empty.", kind)
        if len(value) > MAX_SIZE:
            self._refuse(f"{kind} has {len(value)} characters; at most {MAX_SIZE} are allowed.", kind)
        self._check_unicode(value, kind)
        if _depth(value) > MAX_DEPTH:
            self._refuse(f"{kind} is nested too deep; at most {MAX_DEPTH} levels are allowed.", kind)

    def _check_choice(self) -> None:
        choice = self.choice
        if not isinstance(choice, list) or not choice or not all(isinstance(text, str) and text for text in choice):
            self._refuse("choice must be a list of texts, none of them empty.", "choice")
        if len(choice) > MAX_CHOICES or sum(map(len, choice)) > MAX_SIZE:
            self._refuse(f"choice may have at most {MAX_CHOICES} texts with {MAX_SIZE} characters in all.", "choice")
        self._check_unicode("".join(choice), "choice")

    def _check_unicode(self, text: str, kind: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            self._refuse(f"{kind} is not valid Unicode: it has a lone surrogate.", kind)

    def _refuse(self, what: str, part: str | None) -> NoReturn:
        field = self.origin or "structured_outputs"
        raise ClientError(f"{field}: {what}", param=f"{field}.{part}" if part and not self.origin else field)


def _depth(text: str) -> int:
    """Levels of brackets outside of strings, escapes and (roughly) character classes."""
    depths = accumulate(1 if bracket in "([{" else -1 for bracket in _BRACKET.findall(_QUOTED.sub("", text)))
    return max(depths, default=0)
