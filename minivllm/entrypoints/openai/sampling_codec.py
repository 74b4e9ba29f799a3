"""Wire fields of a generating request → `SamplingParams`; refuses what this server cannot do instead of ignoring it."""

from collections.abc import Callable, Mapping
from typing import Any

from minivllm.entrypoints.openai import structured_codec
from minivllm.entrypoints.openai.shared_schema import (
    MAX_ID_LENGTH,
    MAX_LOGIT_BIAS,
    MAX_N,
    MAX_SEQUENCES,
    GenerationRequest,
    StreamOptions,
)
from minivllm.errors import ClientError, NotFoundError
from minivllm.messages.sampling_params import OutputKind, SamplingParams

# Wire fields that carry over by name.
_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "n",
    "seed",
    "stop",
    "stop_token_ids",
    "allowed_token_ids",
    "bad_words",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "truncate_prompt_tokens",
)
# Those of the model's generation_config.json that have the same meaning per request.
_MODEL_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def _never(value: Any) -> bool:
    return False


def _falsy(value: Any) -> bool:
    return not value


# Fields that would change the answer, and a test for the values that are harmless. None is always harmless.
_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "use_beam_search": _falsy,
    "length_penalty": lambda value: value == 1,
    "early_stopping": _falsy,
    "logits_processors": _falsy,
    "suffix": _falsy,  # a field of text completions
    "prompt_embeds": _never,
    "truncation_side": lambda value: value == "left",
    "logprob_token_ids": _falsy,
    "thinking_token_budget": lambda value: value == -1,
    "repetition_detection": _never,
    "ec_transfer_params": _falsy,
    "vllm_xargs": _falsy,
    "watermarking": _falsy,
    "audio": _never,
    "modalities": lambda value: value == ["text"],
    "functions": _falsy,  # fields of chat requests
    "function_call": lambda value: value in ("none", "auto"),
    "web_search_options": _never,
    "mm_processor_kwargs": _falsy,
    "media_io_kwargs": _falsy,
    # Names that other servers have for what is `structured_outputs` here.
    "grammar": _falsy,
    "json_schema": _never,
    "regex": _falsy,
    "ebnf": _falsy,
}


def check_supported(request: GenerationRequest) -> None:
    """Raise `ClientError` for a field that asks for what this server cannot do."""
    for name, value in (request.model_extra or {}).items():
        harmless = _UNSUPPORTED.get(name)
        if harmless is not None and value is not None and not harmless(value):
            raise ClientError(f"`{name}` is not supported by this server; leave it out.", param=name)
    best_of = (request.model_extra or {}).get("best_of")
    if best_of is not None and best_of != (request.n or 1):
        raise ClientError("`best_of` is not supported; leave it out, or set it to the value of `n`.", param="best_of")


def is_known(name: str) -> bool:
    """Whether a field that no schema has is looked at nevertheless."""
    return name in _UNSUPPORTED or name == "best_of"


def check_model(model: str | None, served: tuple[str, ...]) -> str:
    """The name to use in the reply."""
    if not model:
        return served[0]
    if model not in served:
        raise NotFoundError(
            f"The model `{model[:MAX_ID_LENGTH]}` does not exist. Valid aliases: {', '.join(served)}.", param="model"
        )
    return model


def sampling_params(
    request: GenerationRequest,
    defaults: Mapping[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    max_logprobs: int,
) -> SamplingParams:
    """`defaults` are the model's own; the last four are what the endpoint made of its own fields."""
    fields = model_defaults(defaults)
    fields |= {name: value for name in _SAME_NAME if (value := getattr(request, name)) is not None}
    check_count(fields.get("n", 1))
    if prompt_logprobs is not None and request.prompt_logprobs is not None and request.stream:
        raise ClientError("`prompt_logprobs` are not available when `stream=True`.", param="prompt_logprobs")
    _check_logprobs("prompt_logprobs", "prompt", request.prompt_logprobs, max_logprobs)
    if fields.get("truncate_prompt_tokens") == 0:
        raise ClientError("truncate_prompt_tokens must be -1 or at least 1, got 0.", param="truncate_prompt_tokens")
    return SamplingParams(
        **fields,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_logit_bias(request.logit_bias),
        structured_outputs=structured_codec.decode(request),
        output_kind=OutputKind.DELTA if request.stream else OutputKind.FINAL_ONLY,
        extra_args={"kv_transfer_params": transfer} if (transfer := _kv_transfer_params(request)) else None,
    )


def timeout(timeout_ms: int | None) -> float | None:
    """In seconds, as the engine takes it."""
    return None if timeout_ms is None else timeout_ms / 1000


def model_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the model's own that a request starts from."""
    return {name: defaults[name] for name in _MODEL_DEFAULTS if defaults.get(name) is not None}


def check_count(n: int, num_prompts: int = 1) -> None:
    if n > MAX_N:
        raise ClientError(f"n must be at most {MAX_N}, got {n}.", param="n", value=n)
    if n * num_prompts > MAX_SEQUENCES:
        raise ClientError(f"n times the number of prompts must be at most {MAX_SEQUENCES}, got {n * num_prompts}.", param="n")


def check_max_tokens(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ClientError(f"{name} must be at least {least}, got {value}.", param=name, value=value)


def check_logprobs(name: str, value: int | None, max_logprobs: int) -> None:
    _check_logprobs(name, "sample", value, max_logprobs)


def _check_logprobs(name: str, what: str, value: int | None, max_logprobs: int) -> None:
    if value is None or max_logprobs == -1:
        return
    if value < -1:
        raise ClientError(f"{name} must be at least 0, got {value}.", param=name, value=value)
    if value == -1 or value > max_logprobs:
        asked = "the whole vocabulary" if value == -1 else value
        raise ClientError(
            f"{name}: requested {what} logprobs of {asked}, which is greater than max allowed: {max_logprobs}", param=name
        )


def check_stream_options(request: GenerationRequest) -> StreamOptions:
    if request.stream_options is None:
        return StreamOptions()
    if not request.stream:
        raise ClientError("Stream options can only be defined when `stream=True`.", param="stream_options")
    return request.stream_options


def check_cache_salt(salt: str | None) -> None:
    if salt is not None and (not salt or any(char in "@/\\\0" for char in salt)):
        raise ClientError("cache_salt must be a non-empty string without '@', '/', '\\' and NUL.", param="cache_salt")


def _kv_transfer_params(request: GenerationRequest) -> dict[str, Any] | None:
    params = request.kv_transfer_params
    if params and params.get("do_remote_decode") and request.stream:
        raise ClientError("kv_transfer_params: do_remote_decode is answered when `stream` is not set.", param="stream")
    return params


def _logit_bias(given: dict[str, float] | None) -> dict[int, float] | None:
    if not given:
        return None
    if len(given) > MAX_LOGIT_BIAS:
        raise ClientError(f"logit_bias must have at most {MAX_LOGIT_BIAS} entries, got {len(given)}.", param="logit_bias")
    wrong = [key[:20] for key in given if not (key.isascii() and key.isdigit() and len(key) < 19)]
    if wrong:
        raise ClientError(
            f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong[:10]}", param="logit_bias"
        )
    return {int(key): bias for key, bias in given.items()}
