"""`/v1/responses` on the wire → `ChatRequest`, and the response as it stands before it has an output."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from minivllm.entrypoints.chat.request import ChatRequest
from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.entrypoints.responses import tools
from minivllm.entrypoints.responses.items import chat_messages
from minivllm.entrypoints.responses.schema import Item, ResponseObject, ResponsesRequest, TextConfig
from minivllm.errors import ClientError
from minivllm.messages.sampling_params import OutputKind, SamplingParams
from minivllm.messages.structured_outputs import StructuredOutputsParams

LOGPROBS = "message.output_text.logprobs"
# The others ask for what tools of OpenAI found, or for thoughts that cannot be read.
_INCLUDES = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
# Fields of other APIs, and what they are called in this one.
_ELSEWHERE = {
    "messages": "input",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "top_logprobs",
    "functions": "tools",
    "function_call": "tool_choice",
}
# What would change the answer and is not there.
_UNSUPPORTED = ("prompt", "conversation", "context_management", "prompt_logprobs", "return_token_ids", "moderation")
# Errors of the pipeline name its own fields.
_RENAMED = {"messages": "input", "max_tokens": "max_output_tokens"}


def check_fields(body: ResponsesRequest) -> None:
    """Refuse fields that belong to other APIs or ask for what is not there."""
    given = {name: getattr(body, name) for name in body.model_fields_set}
    for name, value in given.items():
        if value is None or value is False:
            continue
        if name in _ELSEWHERE:
            raise ClientError(f"Unsupported parameter: `{name}`. In this API it is `{_ELSEWHERE[name]}`.", param=name)
        if name in _UNSUPPORTED or (name == "n" and value != 1):
            raise ClientError(f"`{name}` is not supported by this server; leave it out.", param=name)
    for index, name in enumerate(body.include or ()):
        if name not in _INCLUDES:
            raise ClientError(f"include has no {name[:64]!r}; it has {', '.join(_INCLUDES)}.", param=f"include[{index}]")
    if body.background and body.store is False:
        raise ClientError("background needs `store`: nobody could ask for the response.", param="background")
    sampling.check_supported(body)


def decode(body: ResponsesRequest, items: Sequence[Item], defaults: Mapping[str, Any], max_logprobs: int) -> ChatRequest:
    """`items`: the conversation, the new ones last. `defaults`: the model's sampling defaults."""
    sampling.check_cache_salt(body.cache_salt)
    shown, tool_use = tools.decode(body)
    kwargs = dict(body.chat_template_kwargs or {})
    effort = body.reasoning.effort if body.reasoning is not None else None
    if effort is not None:
        kwargs.setdefault("reasoning_effort", effort)
    if effort == "none":
        for name in ("enable_thinking", "thinking"):  # what templates call it
            kwargs.setdefault(name, False)
    messages = chat_messages(body.instructions, items)
    if not items:
        raise ClientError("input must not be empty.", param="input")
    return ChatRequest(
        messages=messages,
        sampling_params=_sampling_params(body, defaults, max_logprobs),
        tools=[tool.for_template() for tool in shown] or None,
        tool_use=tool_use,
        template_kwargs=kwargs,
        add_special_tokens=bool(body.add_special_tokens),
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
        timeout=sampling.timeout(body.timeout_ms),
    )


def head(response_id: str, model: str, body: ResponsesRequest, params: SamplingParams) -> ResponseObject:
    """A response without output."""
    reasoning = body.reasoning
    shown_tools, tool_choice = tools.shown(body)
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "queued" if body.background else "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": summary(body)},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": params.temperature,
        "text": _shown_text(body.text),
        "tool_choice": tool_choice,
        "tools": shown_tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
    }


def summary(body: ResponsesRequest) -> str | None:
    """What kind of summary of the thoughts is asked for."""
    return None if body.reasoning is None else body.reasoning.summary or body.reasoning.generate_summary


def renamed(error: ClientError) -> ClientError:
    """The error of the pipeline, with the names that this API has for its fields."""
    name = (error.param or "").partition("[")[0]
    if name in _RENAMED:
        error.param = _RENAMED[name]
        error.message = error.message.replace(name, _RENAMED[name])
    return error


def _sampling_params(body: ResponsesRequest, defaults: Mapping[str, Any], max_logprobs: int) -> SamplingParams:
    sampling.check_max_tokens("max_output_tokens", body.max_output_tokens, 1)
    sampling.check_logprobs("top_logprobs", body.top_logprobs, max_logprobs)
    max_tokens = body.max_output_tokens if body.max_output_tokens is not None else defaults.get("max_new_tokens")
    with_logprobs = bool(body.top_logprobs) or LOGPROBS in (body.include or ())
    params = sampling.sampling_params(
        body,
        defaults,
        max_tokens=max_tokens,
        logprobs=(body.top_logprobs or 0) if with_logprobs else None,
        prompt_logprobs=None,
        max_logprobs=max_logprobs,
    )
    form = _form(body)
    if form is not None:
        if params.structured_outputs is not None:
            raise ClientError("text.format excludes other constraints; leave them out.", param="text.format")
        params = msgspec.structs.replace(params, structured_outputs=form)
    if with_logprobs or body.background:  # which tokens belong to the text; what there is when it is cancelled
        params = msgspec.structs.replace(params, output_kind=OutputKind.DELTA)
    return params


def _shown_text(text: TextConfig | None) -> dict[str, Any]:
    form: dict[str, Any] = {"type": "text"}
    if text is not None and text.format is not None:
        fields = {"type", "name", "description", "json_schema", "strict"} if text.format.type == "json_schema" else {"type"}
        form = text.format.model_dump(include=fields, by_alias=True, exclude_none=True)
    return {"format": form, "verbosity": text.verbosity if text is not None and text.verbosity else "medium"}


def _form(body: ResponsesRequest) -> StructuredOutputsParams | None:
    form = body.text.format if body.text is not None else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return StructuredOutputsParams(json_object=True, origin="text.format")
    if form.json_schema is None:
        raise ClientError("text.format of type 'json_schema' needs a `schema`.", param="text.format.schema")
    return StructuredOutputsParams(json=form.json_schema, origin="text.format.schema")
