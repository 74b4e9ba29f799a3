"""Messages and texts → prompt tokens. Used by every API that generates and by `/tokenize`."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from minivllm.entrypoints.chat.request import ChatRequest
from minivllm.entrypoints.chat.tool_prompt import without_tools
from minivllm.errors import ClientError
from minivllm.messages.prompt import TokensPrompt
from minivllm.text.chat_template import ChatTemplate
from minivllm.text.fill_in_middle import FillInMiddle, fill_in_middle
from minivllm.text.parsers.format import Layout
from minivllm.text.tokenizer import Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool")
# Template variables that have fields of their own.
_RESERVED = {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
# Longer texts are tokenized in a thread (the tokenizer releases the GIL), so that open streams do not wait for them.
_LONG_TEXT = 20_000  # characters


async def encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
    if len(text) <= _LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)


def filler(tokenizer: Tokenizer, param: str) -> FillInMiddle:
    """`ClientError` about `param` if the model has no tokens for a gap."""
    filling = fill_in_middle(tokenizer)
    if filling is None:
        raise ClientError(
            f"`{param}` needs a model that fills in the middle; the tokenizer of this one has no tokens for that.", param=param
        )
    return filling


class ChatPrompts:
    """Renders requests with the model's chat template, or with `tool_template` if tools are given and there is one.

    `layout`: how calls are written, for a template that knows nothing of tools.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: str | None, tool_template: str | None = None, layout: Layout | None = None
    ):
        self._tokenizer = tokenizer
        self._template = ChatTemplate(template, tokenizer.template_tokens) if template else None
        self._tool_template = ChatTemplate(tool_template, tokenizer.template_tokens) if tool_template else self._template
        self._layout = layout

    async def render(self, request: ChatRequest) -> TokensPrompt:
        """Raises `ClientError` for messages that cannot be rendered; `param` names the part."""
        template = self._tool_template if request.tools else self._template
        if template is None:
            raise ClientError(
                "This model has no chat template. Use /v1/completions, or start the server with --chat-template.",
                param="messages",
            )
        reserved = _RESERVED & request.template_kwargs.keys()
        if reserved:
            raise ClientError(
                f"chat_template_kwargs cannot hold {', '.join(sorted(reserved))}: use the field of that name.",
                param="chat_template_kwargs",
            )
        messages = [_message(message, f"messages[{index}]") for index, message in enumerate(request.messages)]
        tools = request.tools
        if self._layout is not None and "tools" not in template.source:
            messages, tools = without_tools(messages, tools, self._layout, template.source), None
        text = template.render(
            messages,
            tools=tools,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            **request.template_kwargs,
        )
        prompt: TokensPrompt = {
            "prompt_token_ids": await encode(self._tokenizer, text, request.add_special_tokens),
            "prompt": text,
        }
        if request.cache_salt is not None:
            prompt["cache_salt"] = request.cache_salt
        return prompt


def _message(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    message = {name: value for name, value in given.items() if value is not None}
    role = message.get("role")
    if role not in ROLES:
        raise ClientError(f"Unknown role {str(role)[:50]!r}: use one of {', '.join(ROLES)}.", param=f"{where}.role")
    content = given.get("content")
    if content is None:
        if role != "assistant":
            raise ClientError(f"A message of role {role!r} needs content.", param=f"{where}.content")
        content = ""
    message["content"] = _content(content, f"{where}.content")
    if "tool_calls" in message:
        message["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    return message


def _content(content: object, where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ClientError("Content must be a string or a list of parts.", param=where)
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _part(part: object, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise ClientError("A content part must be an object with a `type`.", param=where)
    if kind not in ("text", "input_text", "output_text", "refusal"):
        raise ClientError(f"Content parts of type {kind[:50]!r} are not supported: this model reads text only.", param=where)
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise ClientError("The text of a content part must be a string.", param=f"{where}.text")
    return {"type": "text", "text": text}


def _tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Templates print the arguments as an object, clients send them as JSON text."""
    if not isinstance(calls, list):
        raise ClientError("tool_calls must be a list.", param=where)
    result = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ClientError("A tool call must have a function with a name.", param=f"{where}[{index}]")
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = msgspec.json.decode(arguments)
            except (msgspec.MsgspecError, RecursionError):
                arguments = None
        if not isinstance(arguments, dict):
            part = f"{where}[{index}].function.arguments"
            raise ClientError("The arguments of a tool call must be a JSON object.", param=part)
        result.append({**call, "function": {**function, "arguments": arguments}})
    return result
