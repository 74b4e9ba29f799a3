"""`ChatEvent`s of one session → the events of a response; the response itself is what they have added up to."""

import time
from collections.abc import Collection
from typing import Any

import msgspec

from minivllm.entrypoints.chat.session import ChatSession
from minivllm.entrypoints.http.errors import describe, report
from minivllm.entrypoints.openai.logprobs_codec import LogprobsCodec
from minivllm.entrypoints.responses.items import new_id
from minivllm.entrypoints.responses.schema import Item, ResponseObject, ResponseUsage
from minivllm.errors import ClientError
from minivllm.text.parsers.events import ChatEvent, Delta, Finish, ReasoningDelta, TextDelta, ToolArgsDelta, ToolCallStart

# Finish reasons other than a complete answer: the status, and why it is incomplete.
_ENDS = {"length": ("incomplete", "max_output_tokens"), "timeout": ("incomplete", "timeout"), "abort": ("cancelled", None)}


class ResponseEncoder:
    """`response` grows with every event. Each method returns the new events as server-sent ones, which are numbered from 0.

    An output is a list of items, one open at a time. `custom`: the names of the tools that take a text.
    """

    def __init__(
        self,
        response: ResponseObject,
        session: ChatSession,
        *,
        logprobs: LogprobsCodec | None = None,
        custom: Collection[str] = (),
        with_summary: bool = False,
    ):
        self.response = response
        self.ended = False
        self._session = session
        self._logprobs = logprobs
        self._custom = custom
        self._with_summary = with_summary
        self._num_events = 0
        self._new: list[bytes] = []
        self._failure = b""  # the last events of one that failed
        self._item: Item = {}  # the open one
        self._kind: str | int | None = None  # what it holds: "text", "reasoning" or the number of a call
        self._arguments = ""  # of a custom tool, which are JSON around its text
        self._held: list[Any] = []  # logprobs of tokens whose text is still to come

    @property
    def begun(self) -> bool:
        return self._num_events > 0

    def queue(self) -> list[bytes]:
        """For a response that begins later."""
        self._emit_response("created")
        self._emit_response("queued")
        return self._take()

    def encode(self, event: ChatEvent) -> list[bytes]:
        self._begin()
        self._add(event)
        return self._take()

    def fail(self, exc: Exception) -> list[bytes]:
        """The end, by an error."""
        message = describe(exc)[1]["message"]
        code = "invalid_prompt" if isinstance(exc, ClientError) else "server_error"
        self.response["error"] = {"code": code, "message": message}
        self._end("failed")
        new = self._take()
        self._failure = b"".join(new)
        return new

    def cancel(self) -> list[bytes]:
        """The end, by the client; nothing if it has ended already."""
        if not self.ended:
            self._end("cancelled")
        return self._take()

    def error_event(self, exc: BaseException) -> bytes:
        """What a stream ends with that an error has cut off."""
        report(exc)
        if self._failure:
            return self._failure
        error = describe(exc)[1]
        self._emit("error", code=error["type"], message=error["message"], param=error["param"])
        return self._take()[0]

    def _begin(self) -> None:
        if not self.begun:
            self._emit_response("created")
        if self.response["status"] == "queued" or self._num_events == 1:
            self.response["status"] = "in_progress"
            self._emit_response("in_progress")

    def _add(self, event: ChatEvent) -> None:
        match event:
            case TextDelta():
                self._hold(event)
                if event.text:
                    self._add_text(event.text)
            case ReasoningDelta(text=text) if text:
                self._add_thought(text)
            case ToolCallStart():
                self._start_call(event)
            case ToolArgsDelta(text=text) if text:
                self._add_arguments(text)
            case Finish():
                if not self.response["output"]:
                    self._open_text()  # an answer of nothing
                self._end(*_ENDS.get(event.reason, ("completed", None)))
            case _:
                pass

    def _add_text(self, text: str) -> None:
        if self._kind != "text":
            self._open_text()
        part = self._item["content"][0]
        part["text"] += text
        part["logprobs"] += self._held
        self._emit_part("output_text.delta", content_index=0, delta=text, logprobs=self._held)
        self._held = []

    def _open_text(self) -> None:
        self._open("text", {"type": "message", "role": "assistant", "status": "in_progress", "content": []})
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._item["content"].append(part)
        self._emit_part("content_part.added", content_index=0, part=part)

    def _add_thought(self, text: str) -> None:
        self._held = []
        if self._kind != "reasoning":
            self._open("reasoning", {"type": "reasoning", "status": "in_progress", "summary": [], "content": []})
            self._item["content"].append(part := {"type": "reasoning_text", "text": ""})
            self._emit_part("content_part.added", content_index=0, part=part)
            if self._with_summary:
                self._item["summary"].append(part := {"type": "summary_text", "text": ""})
                self._emit_part("reasoning_summary_part.added", summary_index=0, part=part)
        self._item["content"][0]["text"] += text
        self._emit_part("reasoning_text.delta", content_index=0, delta=text)
        if self._with_summary:
            self._item["summary"][0]["text"] += text
            self._emit_part("reasoning_summary_text.delta", summary_index=0, delta=text)

    def _start_call(self, event: ToolCallStart) -> None:
        self._held = []
        kind, field = ("custom_tool_call", "input") if event.name in self._custom else ("function_call", "arguments")
        item = {"type": kind, "status": "in_progress", "call_id": event.id, "name": event.name, field: ""}
        self._arguments = ""
        self._open(event.call, item)

    def _add_arguments(self, text: str) -> None:
        if self._item["type"] == "custom_tool_call":
            self._arguments += text
        else:
            self._item["arguments"] += text
            self._emit_part("function_call_arguments.delta", delta=text)

    def _hold(self, event: Delta) -> None:
        if self._logprobs is not None and event.logprobs is not None:
            self._held += self._logprobs.chat(event.token_ids, event.logprobs)["content"]

    def _open(self, kind: str | int, item: Item) -> None:
        self._close("completed")
        self._kind, self._item = kind, {"id": new_id(item["type"]), **item}
        self.response["output"].append(self._item)
        self._emit("response.output_item.added", output_index=self._index, item=self._item)

    def _close(self, status: str) -> None:
        item = self._item
        if not item:
            return
        kind = item["type"]
        if kind == "message":
            part = item["content"][0]
            self._emit_part("output_text.done", content_index=0, text=part["text"], logprobs=part["logprobs"])
            self._emit_part("content_part.done", content_index=0, part=part)
        elif kind == "reasoning":
            part = item["content"][0]
            self._emit_part("reasoning_text.done", content_index=0, text=part["text"])
            self._emit_part("content_part.done", content_index=0, part=part)
            for part in item["summary"]:
                self._emit_part("reasoning_summary_text.done", summary_index=0, text=part["text"])
                self._emit_part("reasoning_summary_part.done", summary_index=0, part=part)
        elif kind == "function_call":
            self._emit_part("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        else:
            item["input"] = _custom_input(self._arguments)
            self._emit_part("custom_tool_call_input.delta", delta=item["input"])
            self._emit_part("custom_tool_call_input.done", input=item["input"])
        item["status"] = status
        self._emit("response.output_item.done", output_index=self._index, item=item)
        self._item, self._kind = {}, None

    def _end(self, status: str, reason: str | None = None) -> None:
        self._close("completed" if status == "completed" else "incomplete")
        self.ended = True
        self.response["status"] = status
        self.response["incomplete_details"] = {"reason": reason} if reason is not None else None
        self.response["completed_at"] = int(time.time()) if status == "completed" else None
        self.response["usage"] = _usage(self._session)
        # No event of the API says "cancelled".
        self._emit_response("incomplete" if status == "cancelled" else status)

    @property
    def _index(self) -> int:
        return len(self.response["output"]) - 1

    def _emit_response(self, what: str) -> None:
        self._emit(f"response.{what}", response=self.response)

    def _emit_part(self, what: str, **fields: Any) -> None:
        self._emit(f"response.{what}", item_id=self._item["id"], output_index=self._index, **fields)

    def _emit(self, kind: str, **fields: Any) -> None:
        data = msgspec.json.encode({"type": kind, "sequence_number": self._num_events, **fields})
        self._new.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
        self._num_events += 1

    def _take(self) -> list[bytes]:
        new, self._new = self._new, []
        return new


def _custom_input(arguments: str) -> str:
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return arguments
    given = value.get("input") if isinstance(value, dict) else None
    return given if isinstance(given, str) else arguments


def _usage(session: ChatSession) -> ResponseUsage:
    num_input, num_output = len(session.prompt_token_ids), session.num_completion_tokens
    return {
        "input_tokens": num_input,
        "input_tokens_details": {"cached_tokens": session.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": session.num_reasoning_tokens},
        "total_tokens": num_input + num_output,
    }
