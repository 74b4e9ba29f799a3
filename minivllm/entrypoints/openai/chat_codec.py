"""`/v1/chat/completions` on the wire ↔ `ChatRequest` and `ChatEvent`s."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from minivllm.entrypoints.chat.collect import ChatAnswer
from minivllm.entrypoints.chat.request import ChatRequest
from minivllm.entrypoints.chat.session import ChatSession
from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.entrypoints.openai import tools_codec
from minivllm.entrypoints.openai.chat_schema import ChatCompletion, ChatCompletionRequest
from minivllm.entrypoints.openai.logprobs_codec import LogprobsCodec
from minivllm.entrypoints.openai.reply import ReplyHead, encode_json
from minivllm.entrypoints.openai.shared_schema import StreamOptions, Usage, usage
from minivllm.errors import ClientError
from minivllm.messages.sampling_params import SamplingParams
from minivllm.text.parsers.events import ChatEvent, Delta, Finish, ReasoningDelta, TextDelta, ToolArgsDelta, ToolCallStart

CHUNK = "chat.completion.chunk"
REASONING_NAMES = ("reasoning_content", "reasoning")  # clients know the one or the other


def decode(body: ChatCompletionRequest, defaults: Mapping[str, Any], max_logprobs: int) -> ChatRequest:
    """Everything that can be refused without the tokenizer is refused here. `defaults`: the model's sampling defaults."""
    sampling.check_supported(body)
    tools, tool_use = tools_codec.decode(body)
    if body.chat_template is not None:
        raise ClientError(
            "Chat templates of requests are not trusted; set one for the server with --chat-template.", param="chat_template"
        )
    sampling.check_cache_salt(body.cache_salt)
    kwargs = dict(body.chat_template_kwargs or {})
    for name in ("documents", "reasoning_effort"):
        if (value := getattr(body, name)) is not None:
            kwargs.setdefault(name, value)
    if body.reasoning_effort == "none":
        for name in ("enable_thinking", "thinking"):  # what templates call it
            kwargs.setdefault(name, False)
    continue_final = bool(body.continue_final_message)
    return ChatRequest(
        messages=[message.model_dump(exclude_unset=True) for message in body.messages],
        sampling_params=_sampling_params(body, defaults, max_logprobs),
        tools=[tool.for_template() for tool in tools] or None,
        tool_use=tool_use,
        include_reasoning=body.include_reasoning is not False,
        add_generation_prompt=not continue_final if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=continue_final,
        template_kwargs=kwargs,
        add_special_tokens=bool(body.add_special_tokens),
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
        timeout=sampling.timeout(body.timeout_ms),
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


class ChatEncoder:
    """Encodes the answer of one session, as chunks or whole."""

    def __init__(
        self,
        head: ReplyHead,
        session: ChatSession,
        logprobs: LogprobsCodec,
        role: str,
        *,
        with_token_ids: bool = False,
        with_functions: bool = False,
    ):
        self._head = head
        self._session = session
        self._logprobs = logprobs
        self._role = role
        self._with_token_ids = with_token_ids
        self._with_functions = with_functions  # calls in the older form

    def whole(self, answers: Sequence[ChatAnswer]) -> ChatCompletion:
        reply = self._head.fields("chat.completion")
        reply["choices"] = [self._choice(answer) for answer in answers]
        reply["usage"] = self.usage()
        reply["service_tier"] = None
        reply["prompt_logprobs"] = self._session.prompt_logprobs
        if self._with_token_ids:
            reply["prompt_token_ids"] = self._session.prompt_token_ids
        if self._session.kv_transfer_params is not None:
            reply["kv_transfer_params"] = self._session.kv_transfer_params
        return cast(ChatCompletion, reply)

    def usage(self) -> Usage:
        session = self._session
        figures = usage(len(session.prompt_token_ids), session.num_completion_tokens, session.num_cached_tokens)
        figures["completion_tokens_details"] = {"reasoning_tokens": session.num_reasoning_tokens}
        return figures

    def _choice(self, answer: ChatAnswer) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": answer.index,
            "message": self._message(answer),
            "logprobs": None if answer.logprobs is None else self._logprobs.chat(answer.token_ids, answer.logprobs),
            "finish_reason": self._reason(answer.finish_reason),
            "stop_reason": answer.stop_reason,
        }
        if self._with_token_ids:
            choice["token_ids"] = answer.token_ids
        return choice

    def _message(self, answer: ChatAnswer) -> dict[str, Any]:
        is_text = bool(answer.text) or not (answer.tool_calls or answer.reasoning)
        message: dict[str, Any] = {"role": self._role, "content": answer.text if is_text else None, "refusal": None}
        if answer.reasoning:
            message |= dict.fromkeys(REASONING_NAMES, answer.reasoning)
        if answer.tool_calls:
            functions = [{"name": call.name, "arguments": call.arguments} for call in answer.tool_calls]
            if self._with_functions:
                message["function_call"] = functions[0]
            else:
                ids = [call.id for call in answer.tool_calls]
                message["tool_calls"] = [
                    {"id": call_id, "type": "function", "function": function}
                    for call_id, function in zip(ids, functions, strict=True)
                ]
        return message

    def _delta(self, event: Delta) -> dict[str, Any]:
        if isinstance(event, TextDelta):
            return {"content": event.text}
        if isinstance(event, ReasoningDelta):
            return dict.fromkeys(REASONING_NAMES, event.text)
        if isinstance(event, ToolCallStart):
            function = {"name": event.name, "arguments": ""}
            call = {"index": event.call, "id": event.id, "type": "function", "function": function}
        else:
            assert isinstance(event, ToolArgsDelta)
            function = {"arguments": event.text}
            call = {"index": event.call, "function": function}
        return {"function_call": function} if self._with_functions else {"tool_calls": [call]}

    def _reason(self, reason: str | None) -> str | None:
        return "function_call" if reason == "tool_calls" and self._with_functions else reason

    def stream(self, options: StreamOptions) -> "ChatStreamEncoder":
        return ChatStreamEncoder(self, options)


class ChatStreamEncoder:
    """One `ChatEvent` → the bytes of its server-sent events. Plain text takes a prebuilt frame."""

    def __init__(self, encoder: ChatEncoder, options: StreamOptions):
        self._encoder = encoder
        self._start = encoder._head.event_start(CHUNK)
        self._with_usage = bool(options.include_usage)
        self._usage_in_each = self._with_usage and bool(options.continuous_usage_stats)
        self._plain = not self._usage_in_each and not encoder._with_token_ids  # text without more is worth a prebuilt frame
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
        if not isinstance(event, Finish):
            if isinstance(event, TextDelta) and event.logprobs is None and self._plain:
                return first + plain_start + encode_json(event.text) + self._plain_end if event.text else first
            choice: dict[str, Any] = {"index": index, "delta": self._encoder._delta(event), "logprobs": None}
            choice["finish_reason"] = None
            if event.logprobs is not None:
                choice["logprobs"] = self._encoder._logprobs.chat(event.token_ids, event.logprobs)
            if self._encoder._with_token_ids:
                choice["token_ids"] = event.token_ids
        else:
            choice = {
                "index": index,
                "delta": {},
                "logprobs": None,
                "finish_reason": self._encoder._reason(event.reason),
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
