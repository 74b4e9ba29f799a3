"""Rendered prompts against transformers, over many templates and conversations."""

import itertools

import pytest

from minivllm.errors import ClientError
from minivllm.text.chat_template import ChatTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nDefault<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
TOOLS = """
{%- if tools %}
    {{- 'Tools:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}{{ '\\n' }}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(count=0) %}
{%- for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {%- set ns.count = ns.count + 1 %}
    {%- if message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {{- call.function.arguments | tojson(indent=2) }}
        {%- endfor %}
    {%- endif %}
    {%- if message.reasoning_content is defined and message.reasoning_content %}
        {{- '<think>' ~ message.reasoning_content ~ '</think>' }}
    {%- endif %}
    {%- generation %}
    {{- message.role ~ ': ' ~ (message.content or '') ~ '|' }}
    {%- endgeneration %}
{%- endfor %}
{{- ns.count }}
{%- if add_generation_prompt %}{{ 'assistant:' }}{% endif %}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<no-think>' }}{% endif %}
"""
PARTS = (
    "{% macro body(content) %}{% if content is string %}{{ content }}{% else %}{% for item in content %}"
    "{% if item.type == 'text' %}{{ item.text }}{% else %}<{{ item.type }}>{% endif %}{% endfor %}{% endif %}{% endmacro %}"
    "{% for message in messages %}{{ message.role }}:{{ body(message.content) }};{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "llama2": LLAMA2, "tools": TOOLS, "parts": PARTS}

USER, ASSISTANT = {"role": "user", "content": "Hi  "}, {"role": "assistant", "content": 'Hello <b>&amp; "you" 🐢'}
SYSTEM = {"role": "system", "content": "Be terse."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"city": "Köln", "n": [1, 2]}}}],
}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [USER, ASSISTANT, {"role": "user", "content": ""}],
    [SYSTEM, USER, ASSISTANT, USER, ASSISTANT],
    [USER, CALL, {"role": "tool", "content": '{"t": 3}', "tool_call_id": "1"}],
    [USER, {**ASSISTANT, "reasoning": "because"}],
    [USER, {"role": "skip", "content": "x"}, USER],
    [ASSISTANT, USER],
]
DEFINED = [{"type": "function", "function": {"name": "f", "description": "<tag> 'q' é", "parameters": {}}}]


def reference(template, messages, **options):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    base = pytest.importorskip("transformers.tokenization_utils_base")
    chat = [base._normalize_chat_messages(messages)] if hasattr(base, "_normalize_chat_messages") else [messages]
    return utils.render_jinja_template(chat, chat_template=template, **(TOKENS | options))[0][0]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_equal_to_transformers(name, messages):
    template = ChatTemplate(TEMPLATES[name], TOKENS)
    for tools, prompt, extra in itertools.product((None, DEFINED), (True, False), ({}, {"enable_thinking": False})):
        options = {"tools": tools, "add_generation_prompt": prompt, **extra}
        try:
            expected = reference(TEMPLATES[name], messages, **options)
        except Exception:
            with pytest.raises(ClientError):
                template.render(messages, **options)
        else:
            assert template.render(messages, **options) == expected


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", ["The answer", "The answer is ", "  padded\n\n", ""])
def test_continue_final_message_as_transformers(name, text):
    messages = [USER, {"role": "assistant", "content": text}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert ChatTemplate(TEMPLATES[name], TOKENS).render(messages, **options) == reference(TEMPLATES[name], messages, **options)


def test_continue_final_message_of_parts():
    messages = [USER, {"role": "assistant", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert ChatTemplate(PARTS, TOKENS).render(messages, **options) == reference(PARTS, messages, **options)
    assert ChatTemplate(CHATML, TOKENS).render(messages, **options).endswith("assistant\nOne\nTwo")


def test_real_template(smollm2):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(smollm2))
    template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens_map)
    for messages in CONVERSATIONS[:4]:
        expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert template.render(messages) == expected


def test_parts_are_joined_for_a_text_template():
    template = ChatTemplate(CHATML, TOKENS)
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]
    assert template.takes_parts is False
    assert template.render([SYSTEM, {"role": "user", "content": parts}]) == template.render(
        [SYSTEM, {"role": "user", "content": "One\nTwo"}]
    )
    with pytest.raises(ClientError, match="image_url"):
        template.render([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% set c = m.content %}{% for p in c|list %}{{ p.text }}{% endfor %}{% endfor %}",
        PARTS,
    ],
)
def test_template_that_loops_over_parts_is_recognised(source):
    assert ChatTemplate(source, {}).takes_parts


def test_developer_is_system_where_the_template_does_not_know_it():
    developer = {"role": "developer", "content": "Be terse."}
    assert ChatTemplate(CHATML, TOKENS).render([developer, USER]) == ChatTemplate(CHATML, TOKENS).render([SYSTEM, USER])
    knows = ChatTemplate("{% for m in messages %}{{ 'dev' if m.role == 'developer' else m.role }}{% endfor %}", TOKENS)
    assert knows.render([developer]) == "dev"


def test_messages_are_not_changed():
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}], "name": None}]
    ChatTemplate(CHATML, TOKENS).render(messages)
    ChatTemplate(PARTS, TOKENS).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "x"}], "name": None}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].pop('role') }}",
        "{% set ns = namespace() %}{% set ns.x = cycler.__init__.__globals__ %}{{ ns.x.os }}",
    ],
)
def test_sandbox(source):
    with pytest.raises(ClientError):
        ChatTemplate(source, TOKENS).render([USER])


def test_errors_are_the_clients():
    with pytest.raises(ClientError, match="must not be empty"):
        ChatTemplate(CHATML, TOKENS).render([])
    with pytest.raises(ClientError, match="not valid Jinja"):
        ChatTemplate("{% for %}", TOKENS)
    with pytest.raises(ClientError, match="roles must alternate"):
        ChatTemplate(LLAMA2, TOKENS).render([USER, USER])
    with pytest.raises(ClientError, match="cannot both be true"):
        ChatTemplate(CHATML, TOKENS).render([USER], continue_final_message=True)
    with pytest.raises(ClientError, match="changes the final message"):
        ChatTemplate("{{ messages[0].role }}content", TOKENS).render(
            [USER], continue_final_message=True, add_generation_prompt=False
        )
