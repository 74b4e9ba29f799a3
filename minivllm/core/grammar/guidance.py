"""Grammars by llguidance: see `grammar` for the contracts. Loaded by `manager` with the first grammar."""

import re

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# A step of the costliest grammar takes some 20 ms, and its lexer some 60 MB.
LIMITS = LLParserLimits(max_lexer_states=30_000, max_items_in_row=20_000, step_max_items=100_000, verbose_errors=False)


def brief(message: str) -> str:
    """The line of the library's message that says what is wrong."""
    reason = re.search(r"^error: (.*)", message, re.MULTILINE)
    return f"invalid regex: {reason[1]}" if reason else message.partition("\n")[0].strip()


class GuidanceGrammar:
    def __init__(self, matcher: LLMatcher):
        self._matcher = matcher
        self.ended = False
        self.error: str | None = None

    def bitmask(self) -> bytes:
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            self._fail()
            return bytes(len(mask))
        return mask

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self._fail()
        self.ended = self.error is None and self._matcher.is_stopped()

    def copy(self) -> "GuidanceGrammar":
        return GuidanceGrammar(self._matcher.deep_copy())

    def _fail(self) -> None:
        self.error = f"The grammar cannot be followed any further: {brief(self._matcher.get_error())}"


class GuidanceCompiler:
    def __init__(self, tokenizer: str, eos_token_ids: list[int], added_ids: dict[str, int], vocab_size: int):
        """`tokenizer`: the text of a tokenizer.json. ValueError if the library cannot read it."""
        # Without an end token a text ends where its grammar does: the id beyond the vocabulary is never chosen.
        end_ids = eos_token_ids or [vocab_size]
        self._tokenizer = LLTokenizer(tokenizer, n_vocab=vocab_size + (not eos_token_ids), eos_token=end_ids)
        # For the library, added tokens in angle brackets are no text either, whatever the tokenizer says of them.
        self.special_ids = {text: token for text, token in added_ids.items() if self._tokenizer.is_special_token(token)}
        mask = bytearray(b"\xff" * len(self.compile('start: "a"').bitmask()))
        for token in end_ids:
            mask[token // 8] &= ~(1 << token % 8)
        self.mask_without_end = bytes(mask)

    def compile(self, source: str) -> GuidanceGrammar:
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise ValueError(brief(matcher.get_error()))
        trial = GuidanceGrammar(matcher.deep_copy())
        trial.bitmask()
        if trial.error is not None:
            raise ValueError("no text can match it")
        return GuidanceGrammar(matcher)
