"""Limits on what one request gets in one step, one small class each. A new limit is a class here and a line in `make_rules`.

What stops admission altogether (token budget, free blocks, free slots) is in the scheduler's loop instead.
"""

from abc import ABC, abstractmethod

from minivllm.config.sections.scheduler import SchedulerConfig
from minivllm.core.scheduler.request import Request


class Rule(ABC):
    def start_step(self) -> None:  # noqa: B027 (most rules keep no account)
        """A new plan begins."""

    @abstractmethod
    def limit(self, request: Request, num_tokens: int) -> int:
        """How many of `num_tokens` the request may have; 0 skips it in this step."""

    def accept(self, request: Request, num_tokens: int) -> None:  # noqa: B027
        """The request got this many."""


class KnownEnd(Rule):
    """No work after a token in flight that ends the request for certain."""

    def limit(self, request: Request, num_tokens: int) -> int:
        if request.num_pending and len(request.tokens) + request.num_pending >= request.max_length:
            return 0
        return num_tokens


class LiveGrammar(Rule):
    """Which token may come depends on the one before: a request with a grammar waits for that."""

    def limit(self, request: Request, num_tokens: int) -> int:
        return 0 if request.grammar is not None and request.num_pending else num_tokens


class KnownToken(Rule):
    """The first of several pipeline stages has no token before the last one has sampled it."""

    def limit(self, request: Request, num_tokens: int) -> int:
        return 0 if request.num_pending else num_tokens


class LongPrefill(Rule):
    """At most `threshold` tokens of one prompt in a step, so that a long one leaves room for the others."""

    def __init__(self, threshold: int):
        self._threshold = threshold

    def limit(self, request: Request, num_tokens: int) -> int:
        return min(num_tokens, self._threshold)


def make_rules(config: SchedulerConfig, num_stages: int = 1) -> list[Rule]:
    rules: list[Rule] = [KnownEnd(), LiveGrammar()] if num_stages == 1 else [KnownToken()]
    if config.enable_chunked_prefill and config.long_prefill_token_threshold > 0:
        rules.append(LongPrefill(config.long_prefill_token_threshold))
    return rules
