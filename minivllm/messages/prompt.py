"""The forms in which a user may give a prompt, as in vLLM."""

from typing import TypedDict


class TextPrompt(TypedDict, total=False):
    prompt: str
    cache_salt: str
    second: str  # makes a pair of it, for models that score pairs
    add_special_tokens: bool  # default: true


class TokensPrompt(TypedDict, total=False):
    prompt_token_ids: list[int]
    prompt: str  # the text behind the ids, if known; only echoed
    cache_salt: str


Prompt = str | list[int] | TextPrompt | TokensPrompt
