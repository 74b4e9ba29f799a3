"""`ChatTemplate`: a model's Jinja chat template, rendered in a sandbox as transformers renders it. Used by chat and `LLM`."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.parser
import jinja2.sandbox
from jinja2 import nodes

from minivllm.errors import ClientError

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")  # names under which a message's reasoning is passed
CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplate:
    """One compiled template. `template_tokens` are its variables `bos_token`, `eos_token` and so on.

    A broken template raises `ClientError` at once; what a template itself refuses (roles out of order, …) does so in `render`.
    """

    def __init__(self, source: str, template_tokens: Mapping[str, str]):
        self.source = source
        self.template_tokens = dict(template_tokens)
        try:
            tree = ENVIRONMENT.parse(source)
            self._template = ENVIRONMENT.from_string(source)
        except jinja2.TemplateError as error:
            raise ClientError(f"The chat template is not valid Jinja: {error}", param="chat_template") from error
        self.takes_parts = loops_over_content(tree)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation, special tokens included. `kwargs` are further variables of the template.

        Content parts are joined to one text where the template takes content as a text; the role `developer` becomes
        `system` where the template does not know it.
        """
        if not messages:
            raise ClientError("messages must not be empty: give at least one message.", param="messages")
        if continue_final_message and add_generation_prompt:
            text = "continue_final_message and add_generation_prompt cannot both be true."
            raise ClientError(text, param="continue_final_message")
        chat = [self._prepare(message) for message in messages]
        final = _mark_final(chat[-1]) if continue_final_message else ""
        variables = self.template_tokens | kwargs
        variables |= {"messages": chat, "tools": tools, "add_generation_prompt": add_generation_prompt}
        variables.setdefault("documents", None)
        try:
            text = self._template.render(variables)
        except jinja2.TemplateError as error:
            raise ClientError(f"The chat template refused the messages: {error}", param="messages") from error
        except Exception as error:  # a template is a program: it may fail in any way on messages it does not expect
            message = f"The chat template failed on the messages: {type(error).__name__}: {error}"
            raise ClientError(message, param="messages") from error
        return _cut_after_final(text, final) if continue_final_message else text

    def _prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A copy without None values, which templates would print, and with reasoning under each of its names."""
        chat = {key: value for key, value in message.items() if value is not None}
        reasoning = next((chat[key] for key in REASONING_FIELDS if key in chat), None)
        if reasoning is not None:
            chat = {"thinking": reasoning, **chat, "reasoning_content": reasoning}
        if chat.get("role") == "developer" and "developer" not in self.source:
            chat["role"] = "system"
        if isinstance(chat.get("content"), list):
            chat["content"] = [dict(part) if isinstance(part, Mapping) else part for part in chat["content"]]
            if not self.takes_parts:
                chat["content"] = "\n".join([_part_text(part) for part in chat["content"]])
        return chat


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        text = part.get("text", part.get("refusal"))
        if isinstance(text, str):
            return text
        raise ClientError(
            f"This model takes text only: content parts of type {part.get('type')!r} are not supported.", param="messages"
        )
    raise ClientError("A content part must be an object with a type.", param="messages")


def _mark_final(message: dict[str, Any]) -> str:
    """Put a tag behind the text of the last message, at which the rendered prompt is cut; returns the text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + CONTINUE_TAG
        return content
    for part in reversed(content or []):
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            part["text"] = text + CONTINUE_TAG
            return text
    raise ClientError("continue_final_message needs a final message with text to continue.", param="continue_final_message")


def _cut_after_final(text: str, final: str) -> str:
    if final.strip() not in text or CONTINUE_TAG.strip() not in text:
        message = "continue_final_message cannot work here: the chat template changes the final message."
        raise ClientError(message, param="continue_final_message")
    at = text.rindex(CONTINUE_TAG.strip())
    kept = text[at : at + len(CONTINUE_TAG)] == CONTINUE_TAG
    return text[:at] if kept else text[:at].rstrip()  # else the template strips content, and the text's own end with it


def loops_over_content(tree: nodes.Template) -> bool:
    """Does the template go through the parts of a message's content (rather than take it as a text)?"""
    names: set[str] = set()  # variables and macro parameters that hold some message's content
    macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
    for _ in range(2):  # an assignment may stand before the one it depends on, in a macro
        for assign in tree.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names):
                names.add(assign.target.name)
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name in macros:
                for parameter, argument in zip(macros[call.node.name].args, call.args, strict=False):
                    if _is_content(argument, names):
                        names.add(parameter.name)
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    while isinstance(node, (nodes.Filter, nodes.Test)):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it is only passed on."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own filter escapes HTML, which models have not seen."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _make_environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


ENVIRONMENT = _make_environment()
