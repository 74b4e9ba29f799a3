"""`/v1/chat/completions` on the wire ↔ `ChatRequest` and `ChatEvent`s."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from minivllm.entrypoints.chat.collect import ChatAnswer
from minivllm.entrypoints.chat.request import ChatRequest
from minivllm.entrypoints.chat.session import ChatSession
from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.entrypoints.openai.chat_schema import ChatCompletion, ChatCompletionRequest
from minivllm.entrypoints.openai.logprobs_codec import LogprobsCodec
from minivllm.entrypoints.openai.reply import ReplyHead, encode_json
from minivllm.entrypoints.openai.shared_schema import StreamOptions, Usage, usage
from minivllm.errors import ClientError
from minivllm.messages.sampling_params import SamplingParams
from minivllm.text.parsers.events import ChatEvent, TextDelta

CHUNK = "chat.completion.chunk"


def decode(body: ChatCompletionRequest, defaults: Mapping[str, Any], max_logprobs: int) -> ChatRequest:
    """Everything that can be refused without the tokenizer is refused here. `defaults`: the model's sampling defaults."""
    sampling.check_supported(body)
    _check_tools(body)
    if body.chat_template is not None:
        raise ClientError(
            "Chat templates of requests are not trusted; set one for the server with --chat-template.", param="chat_template"
        )
    sampling.check_cache_salt(body.cache_salt)
    kwargs = dict(body.chat_template_kwargs or {})
    for name in ("documents", "reasoning_effort"):
        if (value := getattr(body, name)) is not None:
            kwargs.setdefault(name, value)
    continue_final = bool(body.continue_final_message)
    return ChatRequest(
        messages=[message.model_dump(exclude_unset=True) for message in body.messages],
        sampling_params=_sampling_params(body, defaults, max_logprobs),
        tools=body.tools or None,
        add_generation_prompt=not continue_final if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=continue_final,
        template_kwargs=kwargs,
        add_special_tokens=bool(body.add_special_tokens),
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
        timeout=sampling.timeout(body),
    )


def _sampling_params(body: ChatCompletionRequest, defaults: Mapping[str, Any], max_logprobs: int) -> SamplingParams:
    sampling.check_max_tokens("max_completion_tokens", body.max_completion_tokens, 1)
    sampling.check_max_tokens("max_tokens", body.max_tokens, 1)
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if body.top_logprobs is not None:
        if not body.logprobs:
            raise ClientError("when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
        sampling.check_logprobs("top_logprobs", body.top_logprobs, max_logprobs)
    return sampling.sampling_params(
        body,
        defaults,
        max_tokens=max_tokens if max_tokens is not None else defaults.get("max_new_tokens"),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        max_logprobs=max_logprobs,
    )


def _check_tools(body: ChatCompletionRequest) -> None:
    if body.tool_choice not in (None, "none", "auto") and not body.tools:
        raise ClientError("`tool_choice` needs `tools`.", param="tool_choice")
    if body.tools and body.tool_choice != "none":
        raise ClientError('Tool calls are not supported: leave out `tools`, or set `tool_choice` to "none".', param="tools")


class ChatEncoder:
    """Encodes the answer of one session, as chunks or whole."""

    def __init__(
        self, head: ReplyHead, session: ChatSession, logprobs: LogprobsCodec, role: str, *, with_token_ids: bool = False
    ):
        self._head = head
        self._session = session
        self._logprobs = logprobs
        self._role = role
        self._with_token_ids = with_token_ids

    def whole(self, answers: Sequence[ChatAnswer]) -> ChatCompletion:
        reply = self._head.fields("chat.completion")
        reply["choices"] = [self._choice(answer) for answer in answers]
        reply["usage"] = self.usage()
        reply["service_tier"] = None
        reply["prompt_logprobs"] = self._session.prompt_logprobs
        if self._with_token_ids:
            reply["prompt_token_ids"] = self._session.prompt_token_ids
        return cast(ChatCompletion, reply)

    def usage(self) -> Usage:
        session = self._session
        return usage(len(session.prompt_token_ids), session.num_completion_tokens, session.num_cached_tokens)

    def _choice(self, answer: ChatAnswer) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": answer.index,
            "message": {"role": self._role, "content": answer.text, "refusal": None},
            "logprobs": None if answer.logprobs is None else self._logprobs.chat(answer.token_ids, answer.logprobs),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        if self._with_token_ids:
            choice["token_ids"] = answer.token_ids
        return choice

    def stream(self, options: StreamOptions) -> "ChatStreamEncoder":
        return ChatStreamEncoder(self, options)


class ChatStreamEncoder:
    """One `ChatEvent` → the bytes of its server-sent events. Plain text takes a prebuilt frame."""

    def __init__(self, encoder: ChatEncoder, options: StreamOptions):
        self._encoder = encoder
        self._start = encoder._head.event_start(CHUNK)
        self._with_usage = bool(options.include_usage)
        self._usage_in_each = self._with_usage and bool(options.continuous_usage_stats)
        self._end = b'],"usage":null}\n\n' if self._with_usage else b"]}\n\n"
        self._plain_end = b'},"logprobs":null,"finish_reason":null}' + self._end
        self._plain_starts: dict[int, bytes] = {}  # of each choice that has begun

    def encode(self, event: ChatEvent) -> bytes:
        index = event.index
        plain_start = self._plain_starts.get(index)
        first = b""
        if plain_start is None:
            first = self._first(index)
            plain_start = self._plain_starts[index] = self._start + b'{"index":%d,"delta":{"content":' % index
        if isinstance(event, TextDelta):
            if event.logprobs is None and not self._usage_in_each and not self._encoder._with_token_ids:
                return first + plain_start + encode_json(event.text) + self._plain_end if event.text else first
            choice: dict[str, Any] = {"index": index, "delta": {"content": event.text}, "logprobs": None, "finish_reason": None}
            if event.logprobs is not None:
                choice["logprobs"] = self._encoder._logprobs.chat(event.token_ids, event.logprobs)
            if self._encoder._with_token_ids:
                choice["token_ids"] = event.token_ids
        else:
            choice = {
                "index": index,
                "delta": {},
                "logprobs": None,
                "finish_reason": event.reason,
                "stop_reason": event.stop_reason,
            }
        return first + self._chunk(choice)

    def last(self) -> bytes:
        """The usage chunk, if asked for."""
        if not self._with_usage:
            return b""
        return self._start + b'],"usage":' + encode_json(self._encoder.usage()) + b"}\n\n"

    def _first(self, index: int) -> bytes:
        choice = {
            "index": index,
            "delta": {"role": self._encoder._role, "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        if not self._encoder._with_token_ids or self._plain_starts:
            return self._chunk(choice)
        prompt = b',"prompt_token_ids":' + encode_json(self._encoder._session.prompt_token_ids)
        return self._chunk(choice, prompt)

    def _chunk(self, choice: dict[str, Any], extra: bytes = b"") -> bytes:
        end = self._end
        if self._usage_in_each:
            end = b'],"usage":' + encode_json(self._encoder.usage()) + b"}\n\n"
        return self._start + encode_json(choice) + (b"]" + extra + end[1:] if extra else end)
