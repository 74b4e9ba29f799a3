"""`/v1/completions` on the wire ↔ `SamplingParams` and `RequestOutput`s."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.entrypoints.openai.completion_schema import Completion, CompletionLogprobs, CompletionRequest
from minivllm.entrypoints.openai.logprobs_codec import LogprobsCodec
from minivllm.entrypoints.openai.reply import ReplyHead, encode_json
from minivllm.entrypoints.openai.shared_schema import StreamOptions, Usage, usage
from minivllm.errors import ClientError, ServerError
from minivllm.messages.output import CompletionOutput, Logprob, RequestOutput
from minivllm.messages.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 16


def decode(body: CompletionRequest, defaults: Mapping[str, Any], max_logprobs: int) -> SamplingParams:
    """Everything that can be refused without the tokenizer is refused here. `defaults`: the model's sampling defaults."""
    sampling.check_supported(body)
    sampling.check_count(body.n or 1, len(body.prompt))
    sampling.check_max_tokens("max_tokens", body.max_tokens, 0)
    sampling.check_logprobs("logprobs", body.logprobs, max_logprobs)
    sampling.check_cache_salt(body.cache_salt)
    if body.kv_transfer_params and len(body.prompt) > 1:
        raise ClientError("kv_transfer_params belong to one prompt.", param="kv_transfer_params")
    if body.suffix:
        for name in ("echo", "truncate_prompt_tokens"):
            if getattr(body, name):
                raise ClientError(f"`{name}` and `suffix` exclude each other.", param=name)
    prompt_logprobs = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        prompt_logprobs = max(body.logprobs, prompt_logprobs or 0)
    return sampling.sampling_params(
        body,
        defaults,
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=prompt_logprobs,
        max_logprobs=max_logprobs,
    )


@dataclass(slots=True)
class PromptRecord:
    """What the reply says of one prompt; `text` is what `echo` gives back."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0


@dataclass(slots=True)
class _ChoiceState:
    offset: int = 0  # where the next token's text begins
    started: bool = False


class CompletionEncoder:
    """Encodes the outputs of one call, as chunks or whole. `prompts[i].text` must be set before the first output of i."""

    def __init__(self, body: CompletionRequest, head: ReplyHead, prompts: list[PromptRecord], n: int, logprobs: LogprobsCodec):
        self._body = body
        self._head = head
        self._prompts = prompts
        self._n = n
        self._logprobs = logprobs
        self._choices = [_ChoiceState() for _ in range(n * len(prompts))]
        self._num_completion_tokens = 0

    def usage(self) -> Usage:
        return usage(
            sum(len(prompt.token_ids) for prompt in self._prompts),
            self._num_completion_tokens,
            sum(prompt.num_cached_tokens for prompt in self._prompts),
        )

    def whole(self, outputs: list[RequestOutput]) -> Completion:
        """`outputs`: the final one of each prompt."""
        reply = self._head.fields("text_completion")
        reply["choices"] = [
            self.choice(number, choice, whole=True)
            for number, output in enumerate(outputs)
            for choice in sorted(output.outputs, key=lambda choice: choice.index)
        ]
        reply["usage"] = self.usage()
        reply["service_tier"] = None
        if outputs[0].kv_transfer_params is not None:
            reply["kv_transfer_params"] = outputs[0].kv_transfer_params
        return cast(Completion, reply)

    def choice(self, number: int, output: CompletionOutput, whole: bool = False) -> dict[str, Any]:
        """New text of one choice of prompt `number`; the first time with the prompt, if it is to be echoed."""
        if output.finish_reason == "error":
            raise ServerError("The model failed on this request.")
        index = number * self._n + output.index
        state, prompt, body = self._choices[index], self._prompts[number], self._body
        self._num_completion_tokens += len(output.token_ids)
        first, state.started = not state.started, True
        text = output.text
        logprobs: CompletionLogprobs | None = None
        if body.logprobs is not None:
            logprobs, state.offset = self._token_logprobs(output, prompt, state.offset, with_prompt=first and bool(body.echo))
        if first and body.echo:
            text = prompt.text + text
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        if whole:
            choice["prompt_logprobs"] = prompt.logprobs if body.prompt_logprobs is not None else None
        if body.return_token_ids:
            if first:
                choice["prompt_token_ids"] = prompt.token_ids
            choice["token_ids"] = output.token_ids
        return choice

    def _token_logprobs(
        self, output: CompletionOutput, prompt: PromptRecord, offset: int, with_prompt: bool
    ) -> tuple[CompletionLogprobs, int]:
        token_ids = output.token_ids
        entries: list[dict[int, Logprob] | None] = [*(output.logprobs or ())]
        if with_prompt:
            token_ids = prompt.token_ids + token_ids
            entries = (prompt.logprobs or [None] * len(prompt.token_ids)) + entries
        return self._logprobs.completion(token_ids, entries, offset)


class CompletionStreamEncoder:
    """One `CompletionOutput` → the bytes of its server-sent event. Plain text takes a prebuilt frame."""

    def __init__(self, encoder: CompletionEncoder, options: StreamOptions):
        body = encoder._body
        self._encoder = encoder
        self._start = encoder._head.event_start("text_completion")
        self._with_usage = bool(options.include_usage)
        self._usage_in_each = self._with_usage and bool(options.continuous_usage_stats)
        self._end = b'],"usage":null}\n\n' if self._with_usage else b"]}\n\n"
        self._plain_end = b',"logprobs":null,"finish_reason":null}' + self._end
        self._always_dict = bool(body.return_token_ids) or body.logprobs is not None or self._usage_in_each
        self._plain_starts: dict[int, bytes] = {}

    def encode(self, number: int, output: CompletionOutput) -> bytes:
        encoder = self._encoder
        index = number * encoder._n + output.index
        state = encoder._choices[index]
        first_echo = bool(encoder._body.echo) and not state.started
        if output.finish_reason is None and not self._always_dict and not first_echo:
            encoder._num_completion_tokens += len(output.token_ids)
            if not output.text:
                return b""
            start = self._plain_starts.get(index)
            if start is None:
                start = self._plain_starts[index] = self._start + b'{"index":%d,"text":' % index
            return start + encode_json(output.text) + self._plain_end
        choice = encode_json(encoder.choice(number, output))
        if self._usage_in_each:
            return self._start + choice + b'],"usage":' + encode_json(encoder.usage()) + b"}\n\n"
        return self._start + choice + self._end

    def last(self) -> bytes:
        """The usage chunk, if asked for."""
        if not self._with_usage:
            return b""
        return self._start + b'],"usage":' + encode_json(self._encoder.usage()) + b"}\n\n"
