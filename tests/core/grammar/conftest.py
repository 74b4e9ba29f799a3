"""A compiler over the tokenizer of the scripted core, and what a form lets through."""

from dataclasses import dataclass

import pytest
from scripted_core import make_tokenizer

from minivllm.core.grammar.checker import Job, check
from minivllm.core.grammar.grammar import Grammar
from minivllm.core.grammar.guidance import GuidanceCompiler
from minivllm.messages.structured_outputs import StructuredOutputsParams
from minivllm.text.tokenizer import Tokenizer


@dataclass
class Forms:
    tokenizer: Tokenizer
    compiler: GuidanceCompiler

    def grammar(self, **form) -> Grammar:
        """ValueError if the checker or the compiler refuses it."""
        verdict = check(Job(StructuredOutputsParams(**form), self.compiler.special_ids))
        if verdict.error is not None:
            raise ValueError(verdict.error)
        return self.compiler.compile(verdict.grammar)

    @staticmethod
    def allowed(grammar: Grammar) -> list[int]:
        row = bytearray(grammar.mask_size)
        grammar.write_mask(memoryview(row))
        return [8 * at + bit for at, byte in enumerate(row) for bit in range(8) if byte >> bit & 1]

    def follow(self, grammar: Grammar, ids: list[int]) -> bool:
        """Whether every token is allowed by the mask before it; the grammar has gone along."""
        for token in ids:
            if token not in self.allowed(grammar):
                return False
            grammar.accept(token)
        return grammar.error is None

    def takes(self, grammar: Grammar, text: str) -> bool:
        """Whether the text is a whole answer, token by token."""
        copy = grammar.copy()
        return self.follow(copy, self.tokenizer.encode(text)) and self.tokenizer.eos_token_id in self.allowed(copy)

    def accepts(self, text: str, **form) -> bool:
        return self.takes(self.grammar(**form), text)


@pytest.fixture(scope="session")
def forms() -> Forms:
    tokenizer = make_tokenizer()
    special_ids = {tokenizer.added_tokens[index]: index for index in tokenizer.special_ids}
    eos = [tokenizer.eos_token_id]
    return Forms(tokenizer, GuidanceCompiler(tokenizer.to_json(), eos, special_ids, tokenizer.size))
