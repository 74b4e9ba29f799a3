"""The formats there are, and which of them a model writes: told by its chat template, or named by the user."""

from collections.abc import Mapping

from minivllm.errors import ConfigError
from minivllm.text.parsers.format import Format, Reader, Tools
from minivllm.text.parsers.formats.deepseek import DEEPSEEK_R1, DEEPSEEK_V3, DEEPSEEK_V31
from minivllm.text.parsers.formats.glm45 import GLM45
from minivllm.text.parsers.formats.gpt_oss import GPT_OSS
from minivllm.text.parsers.formats.granite import GRANITE
from minivllm.text.parsers.formats.hermes import HERMES, QWEN3
from minivllm.text.parsers.formats.kimi_k2 import KIMI_K2
from minivllm.text.parsers.formats.llama import LLAMA3_JSON, PYTHONIC
from minivllm.text.parsers.formats.minimax import MINIMAX
from minivllm.text.parsers.formats.mistral import MISTRAL, MISTRAL_V11
from minivllm.text.parsers.formats.phi4_mini import PHI4_MINI
from minivllm.text.parsers.formats.qwen3_coder import QWEN3_CODER
from minivllm.text.parsers.parser import MarkedReader, OutputParser
from minivllm.text.parsers.writer import EventWriter

# What tells a family by its template is looked for in this order.
FORMATS = (
    GPT_OSS,
    KIMI_K2,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    MISTRAL_V11,
    MISTRAL,
    MINIMAX,
    GLM45,
    QWEN3_CODER,
    PHI4_MINI,
    GRANITE,
    HERMES,
    PYTHONIC,
    LLAMA3_JSON,
    QWEN3,
    DEEPSEEK_R1,
)


class Dialect:
    """How one model writes calls and thoughts. `special_tokens`: the tokenizer's, with their ids."""

    def __init__(self, calls: Format, reasoning: Format | None, special_tokens: Mapping[str, int]):
        self.calls = calls
        self.reasoning = reasoning
        self._special = special_tokens

    def parser(
        self, index: int, prompt: str, *, tools: Tools | None, max_calls: int | None = None, show_special: bool = False
    ) -> OutputParser | None:
        """A parser of the answer to `prompt`; None if nothing in it means anything. `tools` None: no calls are expected."""
        if tools is None and self.reasoning is None:
            return None
        writer = EventWriter(index, max_calls, self.calls.new_call_id)
        return OutputParser(self._reader(prompt, tools, () if show_special else self.marks(tools is not None)), writer)

    def marks(self, with_calls: bool) -> tuple[str, ...]:
        """The special tokens that a parser must see and a client must not."""
        marks = self.calls.marks if with_calls else ()
        if self.reasoning is not None and (reasoning := self.reasoning.reasoning) is not None:
            marks = (*marks, *self.reasoning.own_marks, *reasoning.starts, *reasoning.ends, *reasoning.dropped)
        return tuple(dict.fromkeys(mark for mark in marks if mark in self._special))

    def mark_ids(self, with_calls: bool) -> list[int]:
        return [self._special[mark] for mark in self.marks(with_calls)]

    def starts_thinking(self, prompt: str) -> bool:
        """Does the answer to this prompt begin within the thoughts?"""
        reasoning = self.reasoning.reasoning if self.reasoning is not None else None
        if reasoning is None:
            return False
        end = prompt.rstrip()
        return end.endswith(reasoning.starts) or (reasoning.implicit and not end.endswith(reasoning.ends))

    def gate(self, prompt: str) -> tuple[str, str] | None:
        """The texts between which the thoughts stand that come before an answer. The first is empty where they have begun."""
        reasoning = self.reasoning.reasoning if self.reasoning is not None else None
        if reasoning is None or prompt.rstrip().endswith(reasoning.ends):
            return None
        return "" if self.starts_thinking(prompt) else reasoning.starts[0], reasoning.gate or reasoning.ends[0]

    def _reader(self, prompt: str, tools: Tools | None, hidden: tuple[str, ...]) -> Reader:
        for each in (self.reasoning, self.calls if tools is not None else None):
            if each is not None and each.make_reader is not None:
                return each.make_reader(prompt, tools or {})
        return MarkedReader(
            calls=None if tools is None else self.calls.calls,
            reasoning=self.reasoning.reasoning if self.reasoning is not None else None,
            tools=tools or {},
            starts_thinking=self.starts_thinking(prompt),
            hidden=hidden,
        )


def choose(
    template: str, special_tokens: Mapping[str, int], tool_parser: str = "auto", reasoning_parser: str = "auto"
) -> Dialect:
    """The dialect of a model with this chat template. Where nothing is known of its calls, they are Hermes'."""
    check_names(tool_parser, reasoning_parser)
    if tool_parser == "auto":
        calls = next((each for each in FORMATS if each.layout is not None and _is_seen(each, template)), HERMES)
    else:
        calls = TOOL_PARSERS[tool_parser]
    if reasoning_parser == "auto":
        reasoning = next((each for each in (calls, QWEN3, *FORMATS) if _thinks(each, template)), None)
    else:
        reasoning = REASONING_PARSERS.get(reasoning_parser)
    return Dialect(calls, reasoning, special_tokens)


def check_names(tool_parser: str, reasoning_parser: str) -> None:
    """`ConfigError` for a name that is none of a format."""
    for flag, name, known in (
        ("tool-call-parser", tool_parser, ["auto", *TOOL_PARSERS]),
        ("reasoning-parser", reasoning_parser, ["auto", "none", *REASONING_PARSERS]),
    ):
        if name not in known:
            raise ConfigError(f"--{flag} must be one of {', '.join(known)}, got {name!r}.", param=flag.replace("-", "_"))


def _is_seen(each: Format, template: str) -> bool:
    return any(mark in template for mark in each.seen_in)


def _thinks(each: Format, template: str) -> bool:
    if each.reasoning is None or each.reasoning.implicit:
        return False
    marks = each.seen_in if each.make_reader is not None else (*each.reasoning.starts, *each.reasoning.ends)
    return any(mark in template for mark in marks)


TOOL_PARSERS = {name: each for each in FORMATS if each.layout is not None for name in each.names}
REASONING_PARSERS = {name: each for each in FORMATS if each.reasoning is not None for name in each.names}
