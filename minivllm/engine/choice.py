"""`Choice`: one sequence of a request, from its tokens to text, logprobs and the reason of its end. Held by `RequestStream`."""

from minivllm.messages.output import CompletionOutput, FinishReason, Logprob, TokenOutput
from minivllm.messages.sampling_params import OutputKind, SamplingParams
from minivllm.text.detokenizer import Detokenizer
from minivllm.text.logprobs import to_logprobs
from minivllm.text.stop_strings import StopStrings
from minivllm.text.tokenizer import Tokenizer


class Choice:
    """`feed` takes what a step brought; `take` gives what the user has not seen yet, or all of it (by `output_kind`)."""

    __slots__ = (
        "_cumulative",
        "_delta",
        "_detokenizer",
        "_ids",
        "_logprobs",
        "_params",
        "_stops",
        "_text",
        "_tokenizer",
        "dirty",
        "finish_reason",
        "index",
        "last_token_time",
        "num_tokens",
        "stop_reason",
    )

    def __init__(self, index: int, tokenizer: Tokenizer, prompt_ids: list[int], params: SamplingParams):
        self.index = index
        self.num_tokens = 0
        self.last_token_time: float | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.dirty = False  # something was fed that `take` has not given yet
        self._params = params
        self._delta = params.output_kind == OutputKind.DELTA
        self._tokenizer = tokenizer if params.detokenize else None
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, params) if params.detokenize else None
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None
        self._ids: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self._cumulative = 0.0

    def feed(self, output: TokenOutput) -> bool:
        """True if a stop string ended the sequence before the core did: the core must be told."""
        ids, finish = output.token_ids, output.finish_reason
        if self._detokenizer is not None:
            # A stop token is an output token, but its text is not output.
            hidden = finish == FinishReason.STOP and not (self._params.include_stop_str_in_output or output.grammar_ended)
            shown = ids[:-1] if hidden else ids
            if self._stops is None:
                text = self._detokenizer.feed(shown)
                if finish is not None:
                    text += self._detokenizer.finish()
            else:
                text, num_used = self._search(self._detokenizer, self._stops, shown, finish is not None)
                if self._stops.matched is not None:
                    ids = ids[:num_used]
            if text:
                self._text.append(text)
        self._ids += ids
        self.num_tokens += len(ids)
        self.dirty = True
        if self._logprobs is not None and output.logprobs:
            for entry in output.logprobs[: len(ids)]:
                self._cumulative += entry.logprobs[0]
                self._logprobs.append(to_logprobs(entry, self._tokenizer))
        if self._stops is not None and self._stops.matched is not None:
            self.finish_reason, self.stop_reason = "stop", self._stops.matched
            return finish is None
        if finish is not None:
            self.finish_reason, self.stop_reason = str(finish), output.stop_reason
        return False

    def end(self, reason: str) -> None:
        """End from outside. Text that was held back comes out."""
        if self.finish_reason is None:
            self.finish_reason = reason
            self.dirty = True
            if self._detokenizer is not None:
                self._text.append(self._flush(self._detokenizer, self._stops))

    def take(self) -> CompletionOutput:
        delta = self._delta
        output = CompletionOutput(
            self.index,
            "".join(self._text),
            self._ids if delta else self._ids.copy(),
            None if self._logprobs is None else self._cumulative,
            self._logprobs if delta or self._logprobs is None else self._logprobs.copy(),
            self.finish_reason,
            self.stop_reason,
        )
        self.dirty = False
        if delta:
            self._text, self._ids = [], []
            self._logprobs = None if self._logprobs is None else []
        return output

    def _search(self, detokenizer: Detokenizer, stops: StopStrings, ids: list[int], last: bool) -> tuple[str, int]:
        """Text safe to show, and how many of the tokens it took until a stop string was complete."""
        parts = []
        for num_used, token in enumerate(ids, 1):
            search = self.num_tokens + num_used > self._params.min_tokens
            parts.append(stops.feed(detokenizer.feed([token]), search))
            if stops.matched is not None:
                return "".join(parts), num_used
        if last:
            parts.append(self._flush(detokenizer, stops))
        return "".join(parts), len(ids)

    @staticmethod
    def _flush(detokenizer: Detokenizer, stops: StopStrings | None) -> str:
        text = detokenizer.finish()
        if stops is None:
            return text
        text = stops.feed(text)
        return text if stops.matched is not None else text + stops.finish()
