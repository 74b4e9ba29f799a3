"""Logprobs in the wire forms of chat completions and of completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from minivllm.entrypoints.openai.chat_schema import ChatLogprobs, TopLogprob
from minivllm.entrypoints.openai.completion_schema import CompletionLogprobs
from minivllm.messages.output import Logprob
from minivllm.text.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no -inf

PromptLogprobs = Sequence[Mapping[int, Logprob] | None]


class LogprobsCodec:
    """`num_top` alternatives a token; tokens as `token_id:N` if `as_ids`."""

    def __init__(self, tokenizer: Tokenizer, num_top: int, as_ids: bool):
        self._tokenizer = tokenizer
        self._num_top = num_top if num_top >= 0 else tokenizer.size
        self._as_ids = as_ids

    def chat(self, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Logprob]]) -> ChatLogprobs:
        content = []
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            # The chosen token may stand beside the top ones.
            top = sorted(entry.items(), key=lambda item: -item[1].logprob)[: self._num_top]
            chosen: Any = self._chat_entry(token_id, entry[token_id])
            chosen["top_logprobs"] = [self._chat_entry(other, logprob) for other, logprob in top]
            content.append(chosen)
        return {"content": content}

    def completion(self, token_ids: Sequence[int], logprobs: PromptLogprobs, offset: int) -> tuple[CompletionLogprobs, int]:
        """`offset` is where the text of these tokens begins; also returns where it ends."""
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            chosen = entry[token_id] if entry is not None else None
            text = self._text(token_id, chosen)
            tokens.append(f"token_id:{token_id}" if self._as_ids else text)
            offsets.append(offset)
            offset += len(text)
            values.append(max(chosen.logprob, LOWEST) if chosen is not None else None)
            tops.append(self._completion_top(entry) if entry is not None else None)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}, offset

    def _completion_top(self, entry: Mapping[int, Logprob]) -> dict[str, float]:
        top: dict[str, float] = {}
        for token_id, logprob in entry.items():
            # Different tokens may have one text (parts of a character): the first, more probable one stands.
            top.setdefault(self._token(token_id, logprob), max(logprob.logprob, LOWEST))
        return top

    def _chat_entry(self, token_id: int, logprob: Logprob) -> TopLogprob:
        return {
            "token": self._token(token_id, logprob),
            "logprob": max(logprob.logprob, LOWEST),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }

    def _token(self, token_id: int, logprob: Logprob) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._text(token_id, logprob)

    def _text(self, token_id: int, logprob: Logprob | None) -> str:
        if logprob is not None and logprob.decoded_token is not None:
            return logprob.decoded_token
        return self._tokenizer.token_text(token_id)
