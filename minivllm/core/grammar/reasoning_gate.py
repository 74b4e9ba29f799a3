"""`ReasoningGate`: a grammar that begins only after the model's thoughts. Made by `waiting_room`."""

from minivllm.core.grammar.grammar import Grammar


class ReasoningGate:
    """A `Grammar`. Thoughts end with `end`; where `start` is given, the model may also do without them."""

    def __init__(self, grammar: Grammar, start: list[int], end: list[int], mask_without_end: bytes):
        self._grammar: Grammar | None = grammar  # None: the text has left it, while it may still be the beginning of a thought
        self._fresh = grammar.copy()
        self._start = start
        self._end = end
        self._mask_without_end = mask_without_end
        self._thinking = not start
        self._num_started = 0 if start else -1  # tokens of `start` that the text consists of; -1: it is no beginning of it
        self._recent: list[int] = []

    @property
    def error(self) -> str | None:
        return None if self._thinking or self._grammar is None else self._grammar.error

    @property
    def ended(self) -> bool:
        return not self._thinking and self._num_started < 0 and self._grammar is not None and self._grammar.ended

    @property
    def mask_size(self) -> int:
        return self._fresh.mask_size

    def write_mask(self, row: memoryview) -> None:
        if self._thinking:
            row[:] = self._mask_without_end
            return
        if self._grammar is not None:
            self._grammar.write_mask(row)
        if self._num_started >= 0:
            token = self._start[self._num_started]
            row[token // 8] |= 1 << token % 8

    def accept(self, token: int) -> None:
        if self._thinking:
            self._recent = [*self._recent, token][-len(self._end) :]
            if self._recent == self._end:
                self._thinking, self._grammar = False, self._fresh.copy()
            return
        if self._num_started >= 0 and token == self._start[self._num_started]:
            self._num_started += 1
            if self._num_started == len(self._start):
                self._thinking, self._num_started = True, -1
                return
        else:
            self._num_started = -1
        if self._grammar is not None:
            self._grammar.accept(token)
            if self._grammar.error is not None and self._num_started >= 0:
                self._grammar = None

    def copy(self) -> "ReasoningGate":
        return ReasoningGate(self._fresh.copy(), self._start, self._end, self._mask_without_end)
