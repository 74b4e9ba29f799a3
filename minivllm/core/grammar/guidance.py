"""Grammars by llguidance: see `grammar` for the contracts. Loaded by `manager` with the first grammar."""

import ctypes
import re

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# A step of the costliest grammar takes some 20 ms, and its lexer some 60 MB.
LIMITS = LLParserLimits(max_lexer_states=30_000, max_items_in_row=20_000, step_max_items=100_000, verbose_errors=False)


def brief(message: str) -> str:
    """The line of the library's message that says what is wrong."""
    reason = re.search(r"^error: (.*)", message, re.MULTILINE)
    return f"invalid regex: {reason[1]}" if reason else message.partition("\n")[0].strip()


class GuidanceGrammar:
    def __init__(self, matcher: LLMatcher, vocab_size: int):
        self._matcher = matcher
        self._vocab_size = vocab_size
        self.mask_size = -(-vocab_size // 64) * 8
        self.ended = False
        self.error: str | None = None

    def write_mask(self, row: memoryview) -> None:
        # The library writes words of 32 bits, and refuses room for more of them than there are.
        self._matcher.unsafe_compute_mask_ptr(ctypes.addressof(ctypes.c_char.from_buffer(row)), -(-self._vocab_size // 32) * 4)
        if self._matcher.is_error():
            self._fail()
            row[:] = bytes(len(row))

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self._fail()
        self.ended = self.error is None and self._matcher.is_stopped()

    def copy(self) -> "GuidanceGrammar":
        return GuidanceGrammar(self._matcher.deep_copy(), self._vocab_size)

    def _fail(self) -> None:
        self.error = f"The grammar cannot be followed any further: {brief(self._matcher.get_error())}"


class GuidanceCompiler:
    def __init__(self, tokenizer: str, eos_token_ids: list[int], added_ids: dict[str, int], vocab_size: int):
        """`tokenizer`: the text of a tokenizer.json. ValueError if the library cannot read it."""
        # Without an end token a text ends where its grammar does: the id beyond the vocabulary is never chosen.
        end_ids = eos_token_ids or [vocab_size]
        self._vocab_size = vocab_size + (not eos_token_ids)
        self._tokenizer = LLTokenizer(tokenizer, n_vocab=self._vocab_size, eos_token=end_ids)
        # For the library, added tokens in angle brackets are no text either, whatever the tokenizer says of them.
        self.special_ids = {text: token for text, token in added_ids.items() if self._tokenizer.is_special_token(token)}
        mask = bytearray(b"\xff" * self.compile('start: "a"').mask_size)
        for token in end_ids:
            mask[token // 8] &= ~(1 << token % 8)
        self.mask_without_end = bytes(mask)

    def compile(self, source: str) -> GuidanceGrammar:
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise ValueError(brief(matcher.get_error()))
        grammar = GuidanceGrammar(matcher, self._vocab_size)
        trial = grammar.copy()
        trial.write_mask(memoryview(bytearray(trial.mask_size)))
        if trial.error is not None:
            raise ValueError("no text can match it")
        return grammar
