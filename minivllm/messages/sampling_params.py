"""`SamplingParams`: how the tokens of one request are chosen and when it ends. Built by users and by the HTTP codecs."""

import enum
import math
from typing import Any

import msgspec

from minivllm.errors import ClientError
from minivllm.messages.structured_outputs import StructuredOutputsParams

GREEDY_BELOW = 1e-5  # a temperature below this means greedy
MIN_TEMPERATURE = 1e-2  # a smaller positive one overflows half precision; it is raised to this


class OutputKind(enum.IntEnum):
    """What each `RequestOutput` of a stream holds."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new since the last one
    FINAL_ONLY = 2  # one output, at the end


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sampling parameters with the names, defaults and ranges of vLLM; out-of-range values raise `ClientError`.

    `presence_penalty` and `frequency_penalty` count output tokens only, `repetition_penalty` the prompt too.
    `logprobs` is the number of alternatives per token (0: only the chosen token, -1: the whole vocabulary).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] = msgspec.field(default_factory=list)
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    bad_words: list[str] = msgspec.field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    shown_special_ids: list[int] = msgspec.field(default_factory=list)  # special tokens whose text stays nevertheless
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    output_kind: OutputKind = OutputKind.CUMULATIVE
    extra_args: dict[str, Any] | None = None  # as in vLLM; "kv_transfer_params" is all that is known

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "bad_words"):
            given = getattr(self, name)
            if given is None:
                setattr(self, name, [])
            elif isinstance(given, (str, int)):
                setattr(self, name, [given])
            elif not isinstance(given, list):
                setattr(self, name, list(given))
        if self.seed == -1:
            self.seed = None
        if self.top_k == -1:
            self.top_k = 0
        self._check_numbers()
        self._check_lists()
        if self.temperature < GREEDY_BELOW:
            self.temperature = 0.0
        elif self.temperature < MIN_TEMPERATURE:
            self.temperature = MIN_TEMPERATURE

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def _check_numbers(self) -> None:
        _integer("n", self.n, 1)
        _number("temperature", self.temperature)
        if self.temperature < 0:
            _refuse("temperature", f"must be non-negative, got {self.temperature}.", self.temperature)
        if self.temperature > 2:
            _refuse("temperature", f"must be in [0, 2], got {self.temperature}.", self.temperature)
        _number("top_p", self.top_p)
        if not 0 < self.top_p <= 1:
            _refuse("top_p", f"must be in (0, 1], got {self.top_p}.", self.top_p)
        if not _is_int(self.top_k) or self.top_k < 0:
            _refuse("top_k", f"must be 0 (disable), or at least 1, got {self.top_k}.", self.top_k)
        _number("min_p", self.min_p)
        if not 0 <= self.min_p <= 1:
            _refuse("min_p", f"must be in [0, 1], got {self.min_p}.", self.min_p)
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _number(name, value)
            if not -2 <= value <= 2:
                _refuse(name, f"must be in [-2, 2], got {value}.", value)
        _number("repetition_penalty", self.repetition_penalty)
        if self.repetition_penalty <= 0:
            _refuse("repetition_penalty", f"must be greater than zero, got {self.repetition_penalty}.", self.repetition_penalty)
        if self.seed is not None and not (_is_int(self.seed) and -(2**63) <= self.seed < 2**63):
            _refuse("seed", f"must be a 64-bit integer, got {self.seed}.", self.seed)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 0)
        _integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _refuse(
                "min_tokens",
                f"must be less than or equal to max_tokens={self.max_tokens}, got {self.min_tokens}.",
                self.min_tokens,
            )
        for name in ("logprobs", "prompt_logprobs", "truncate_prompt_tokens"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), -1)

    def _check_lists(self) -> None:
        for name, kind in (("stop", str), ("stop_token_ids", int), ("bad_words", str)):
            for item in getattr(self, name):
                if not isinstance(item, kind) or isinstance(item, bool):
                    _refuse(name, f"must hold {kind.__name__} values only, got {item!r}.", item)
                if item == "":
                    _refuse(name, "cannot contain an empty string.", item)
        if self.stop and not self.detokenize:
            _refuse("stop", "needs text to search: set detokenize=True.", self.stop)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            _refuse("allowed_token_ids", "must not be empty.", self.allowed_token_ids)
        if self.logit_bias:
            for token, bias in self.logit_bias.items():
                _number("logit_bias", bias)
                if not _is_int(token):
                    _refuse("logit_bias", f"must have token ids as keys, got {token!r}.", token)
            self.logit_bias = {token: min(100.0, max(-100.0, bias)) for token, bias in self.logit_bias.items()}


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        _refuse(name, f"must be a finite number, got {value}.", value)


def _integer(name: str, value: object, least: int) -> None:
    if not _is_int(value):
        _refuse(name, f"must be an integer, got {value}.", value)
    if value < least:  # type: ignore[operator]
        _refuse(name, f"must be at least {least}, got {value}.", value)


def _refuse(name: str, what: str, value: object) -> None:
    raise ClientError(f"{name} {what}", param=name, value=value)
