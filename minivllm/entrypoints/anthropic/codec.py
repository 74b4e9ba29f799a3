"""`/v1/messages` on the wire ↔ `ChatRequest` and `ChatEvent`s."""

from collections.abc import Mapping
from typing import Any

import msgspec

from minivllm.entrypoints.anthropic.prompt import chat_messages, parsed_arguments, tool_use
from minivllm.entrypoints.anthropic.schema import CountRequest, MessagesReply, MessagesRequest, Usage
from minivllm.entrypoints.chat.collect import ChatAnswer
from minivllm.entrypoints.chat.request import ChatRequest
from minivllm.entrypoints.chat.session import ChatSession
from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.errors import ClientError
from minivllm.messages.sampling_params import OutputKind, SamplingParams
from minivllm.messages.structured_outputs import StructuredOutputsParams
from minivllm.text.parsers.events import ChatEvent, Finish, ReasoningDelta, TextDelta, ToolArgsDelta, ToolCallStart

MAX_STOP_SEQUENCES = 16
MIN_THINKING_BUDGET = 1024
# What would change the answer and is not there.
_UNSUPPORTED = ("mcp_servers", "container", "context_management")


def decode_prompt(body: CountRequest, params: SamplingParams | None = None) -> ChatRequest:
    """The request as far as it makes the prompt."""
    for name in _UNSUPPORTED:
        if (body.model_extra or {}).get(name):
            raise ClientError(f"`{name}` is not supported by this server; leave it out.", param=name)
    tools, use = tool_use(body)
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    kwargs = dict(body.chat_template_kwargs or {})
    for name in ("enable_thinking", "thinking"):  # what templates call it
        kwargs.setdefault(name, thinks)
    if body.output_config is not None and body.output_config.effort is not None:
        kwargs.setdefault("reasoning_effort", body.output_config.effort)
    prefilled = body.messages[-1].role == "assistant"
    return ChatRequest(
        messages=chat_messages(body),
        sampling_params=params or SamplingParams(),
        tools=[tool.for_template() for tool in tools] or None,
        tool_use=use,
        include_reasoning=thinks,
        add_generation_prompt=not prefilled,
        continue_final_message=prefilled,
        template_kwargs=kwargs,
        cache_salt=body.cache_salt,
    )


def decode(body: MessagesRequest, defaults: Mapping[str, Any]) -> ChatRequest:
    """`defaults`: the model's sampling defaults."""
    stops = body.stop_sequences or []
    if len(stops) > MAX_STOP_SEQUENCES or not all(stops):
        raise ClientError(f"stop_sequences may have at most {MAX_STOP_SEQUENCES} texts, none empty.", param="stop_sequences")
    budget = None if body.thinking is None or body.thinking.type != "enabled" else body.thinking.budget_tokens
    if budget is not None and not MIN_THINKING_BUDGET <= budget < body.max_tokens:
        raise ClientError(
            f"thinking.budget_tokens must be at least {MIN_THINKING_BUDGET} and less than max_tokens, got {budget}.",
            param="thinking.budget_tokens",
        )
    fields = sampling.model_defaults(defaults)
    given = {"temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k, "seed": body.seed}
    fields |= {name: value for name, value in given.items() if value is not None}
    if body.output_config is not None and body.output_config.format is not None:
        fields["structured_outputs"] = StructuredOutputsParams(
            json=body.output_config.format.json_schema, origin="output_config.format.schema"
        )
    params = SamplingParams(
        **fields,
        max_tokens=body.max_tokens,
        stop=stops,
        output_kind=OutputKind.DELTA if body.stream else OutputKind.FINAL_ONLY,
    )
    request = decode_prompt(body, params)
    request.priority = body.priority or 0
    request.timeout = sampling.timeout(body.timeout_ms)
    return request


def usage(session: ChatSession) -> Usage:
    cached = session.num_cached_tokens
    return {
        "input_tokens": len(session.prompt_token_ids) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": session.num_completion_tokens,
    }


def head(message_id: str, model: str, session: ChatSession) -> MessagesReply:
    """A message without content."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage(session),
    }


def whole(message_id: str, model: str, session: ChatSession, answer: ChatAnswer) -> MessagesReply:
    reply = head(message_id, model, session)
    content = reply["content"]
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    for call in answer.tool_calls:
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": parsed_arguments(call.arguments)})
    reply["stop_reason"], reply["stop_sequence"] = stop(answer.finish_reason, answer.stop_reason)
    return reply


def stop(reason: str | None, stop_reason: int | str | None) -> tuple[str, str | None]:
    """Why the message ended, and by which of `stop_sequences`."""
    if isinstance(stop_reason, str):
        return "stop_sequence", stop_reason
    if reason == "length":
        return "max_tokens", None
    if reason == "tool_calls":
        return "tool_use", None
    return ("end_turn" if reason == "stop" else "pause_turn"), None  # cancelled or out of time: it may be continued


class StreamEncoder:
    """One `ChatEvent` → the bytes of its server-sent events. A message is a list of blocks, one open at a time."""

    def __init__(self, message_id: str, model: str, session: ChatSession):
        self._id = message_id
        self._model = model
        self._session = session
        self._index = -1
        self._open: str | int | None = None  # "text", "thinking", or the number of the call; None: no block is open
        self._started = False

    def encode(self, event: ChatEvent) -> bytes:
        start = b""
        if not self._started:
            self._started = True
            start = _event("message_start", message=head(self._id, self._model, self._session))
        return start + self._encode(event)

    def _encode(self, event: ChatEvent) -> bytes:
        match event:
            case TextDelta(text=text) if text:
                return self._delta("text", {"type": "text", "text": ""}, {"type": "text_delta", "text": text})
            case ReasoningDelta(text=text) if text:
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return self._delta("thinking", block, {"type": "thinking_delta", "thinking": text})
            case ToolCallStart():
                return self._begin(event.call, {"type": "tool_use", "id": event.id, "name": event.name, "input": {}})
            case ToolArgsDelta(text=text) if text:
                return self._block("delta", delta={"type": "input_json_delta", "partial_json": text})
            case Finish():
                reason, sequence = stop(event.reason, event.stop_reason)
                delta = {"stop_reason": reason, "stop_sequence": sequence}
                last = _event("message_delta", delta=delta, usage=usage(self._session))
                return self._end() + last + _event("message_stop")
            case _:
                return b""

    def _delta(self, kind: str, block: dict[str, Any], delta: dict[str, Any]) -> bytes:
        begin = b"" if self._open == kind else self._begin(kind, block)
        return begin + self._block("delta", delta=delta)

    def _begin(self, kind: str | int, block: dict[str, Any]) -> bytes:
        end = self._end()
        self._open = kind
        self._index += 1
        return end + self._block("start", content_block=block)

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return self._block("stop")

    def _block(self, what: str, **fields: Any) -> bytes:
        return _event(f"content_block_{what}", index=self._index, **fields)


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))
