"""`InputProcessor`: a user's prompt and sampling parameters → a valid `EngineRequest`, or a `ClientError` that says why not."""

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from minivllm.config.engine_config import EngineConfig
from minivllm.config.sections.kv_transfer import KVTransferConfig
from minivllm.engine.pooling_inputs import NO_SAMPLING, PoolingInputs
from minivllm.errors import ClientError
from minivllm.messages.kv_transfer import KVTransferParams
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.prompt import Prompt
from minivllm.messages.request import EngineRequest
from minivllm.messages.sampling_params import SamplingParams
from minivllm.text.tokenizer import Tokenizer

MAX_BAD_WORDS = 128  # token sequences a request may ban
MAX_SALT = 128  # characters


class TokenizedPrompt(NamedTuple):
    token_ids: list[int]
    text: str | None
    cache_salt: str | None
    token_type_start: int | None = None


class InputProcessor:
    """`max_length` is what prompt and output together may take: the model's length, or the KV cache if that is smaller.

    `clamp`: shorten a max_tokens that does not fit (offline use) where a server refuses it.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, max_length: int, clamp: bool = False):
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._clamp = clamp
        self._vocab_size = config.spec.vocab_size
        self._max_logprobs = config.model.max_logprobs
        self._eos_token_ids = list(config.generation.eos_token_ids)
        self._pooling = PoolingInputs(config, tokenizer, max_length)
        self._generates = config.pooling is None
        self._kv_transfer = config.kv_transfer

    def tokenize(self, prompt: Prompt) -> TokenizedPrompt:
        """Any form of prompt to ids. The dear part for a long text, and safe to run in another thread."""
        if isinstance(prompt, str):
            return TokenizedPrompt(self._tokenizer.encode(prompt), prompt, None)
        if isinstance(prompt, dict):
            return self._tokenize_object(prompt)
        if isinstance(prompt, (list, tuple)):
            return TokenizedPrompt(list(prompt), None, None)
        raise ClientError(f"A prompt must be a text, token ids or a dict, not {type(prompt).__name__}.", param="prompt")

    def _tokenize_object(self, prompt: Mapping[str, Any]) -> TokenizedPrompt:
        salt, text, ids = _check_salt(prompt.get("cache_salt")), prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is not None and not isinstance(text, str):
            raise ClientError("prompt must be a text.", param="prompt")
        if ids is not None:
            return TokenizedPrompt(list(ids), text, salt)
        if text is None:
            raise ClientError("A prompt object needs `prompt` (a text) or `prompt_token_ids`.", param="prompt")
        return TokenizedPrompt(self._tokenizer.encode(text), text, salt)

    def grammar_facts(self) -> tuple[str, list[int], dict[str, int], int]:
        """What the core must know of the tokenizer before its first grammar: arguments of its `set_tokenizer`."""
        tokenizer = self._tokenizer
        added_ids = {text: index for index, text in tokenizer.added_tokens.items()}
        return tokenizer.to_json(), self._eos_token_ids, added_ids, tokenizer.size

    def tokenize_for_pooling(self, prompt: Prompt, params: PoolingParams) -> TokenizedPrompt:
        """Likewise for `process_pooling`. A text is cut here, inside of its special tokens; ids are cut as they stand."""
        params = self._pooling.check(params)
        if isinstance(prompt, str):
            prompt = {"prompt": prompt}
        if isinstance(prompt, dict) and "prompt_token_ids" not in prompt and isinstance(prompt.get("prompt"), str):
            ids, start = self._pooling.tokenize(prompt, params)
            return TokenizedPrompt(ids, prompt["prompt"], _check_salt(prompt.get("cache_salt")), start)
        tokenized = self.tokenize(prompt)
        return tokenized._replace(token_ids=self._pooling.cut(tokenized.token_ids, params))

    def process_pooling(
        self,
        request_id: str,
        prompt: TokenizedPrompt,
        params: PoolingParams,
        priority: int = 0,
        arrival_time: float | None = None,
    ) -> EngineRequest:
        """As `process`, for `PoolingParams`."""
        params = self._pooling.check(params)
        _check_unicode("request_id", [request_id])
        ids = self._check_ids(prompt.token_ids)
        self._pooling.check_length(len(ids), params.task or "")
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=ids,
            sampling_params=NO_SAMPLING,
            eos_token_ids=[],
            bad_words_token_ids=[],
            arrival_time=monotonic() if arrival_time is None else arrival_time,
            priority=priority,
            cache_salt=prompt.cache_salt,
            pooling_params=params,
            token_type_start=prompt.token_type_start,
        )

    def process(
        self,
        request_id: str,
        prompt: TokenizedPrompt,
        params: SamplingParams,
        priority: int = 0,
        arrival_time: float | None = None,
    ) -> EngineRequest:
        """A request that the core can trust. `request_id` is the core's, unique. `max_tokens` None: what is left."""
        if not isinstance(params, SamplingParams):
            raise ClientError(f"sampling_params must be SamplingParams, not {type(params).__name__}.", param="sampling_params")
        if not self._generates:
            raise ClientError("The model does not support text generation: it is a pooling model.", param="model")
        self._check_params(params)
        _check_unicode("request_id", [request_id])
        ids = self._check_ids(self._truncate(prompt.token_ids, params))
        max_tokens = self._max_tokens(len(ids), params)
        bad_words = self._bad_words(params.bad_words)
        if params.allowed_token_ids is not None and all([token] in bad_words for token in params.allowed_token_ids):
            raise ClientError("bad_words forbids every token of allowed_token_ids.", param="bad_words")
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=ids,
            sampling_params=msgspec.structs.replace(
                params, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens), extra_args=None
            ),
            eos_token_ids=self._eos_token_ids,
            bad_words_token_ids=bad_words,
            arrival_time=monotonic() if arrival_time is None else arrival_time,
            priority=priority,
            cache_salt=prompt.cache_salt,
            kv_transfer=_kv_transfer(params, self._kv_transfer),
        )

    def _truncate(self, ids: list[int], params: SamplingParams) -> list[int]:
        """The last N ids; with -1, as many as leave room for the output."""
        wanted = params.truncate_prompt_tokens
        if wanted is None:
            return ids
        if wanted > self._max_length:
            raise ClientError(
                f"truncate_prompt_tokens value ({wanted}) is greater than max_model_len ({self._max_length}). "
                "Please, select a smaller truncation size.",
                param="truncate_prompt_tokens",
                value=wanted,
            )
        if wanted == -1:
            wanted = max(1, self._max_length - max(1, params.max_tokens or 1))
        return ids[-wanted:] if wanted else []

    def _check_ids(self, ids: list[int]) -> list[int]:
        if not ids:
            raise ClientError("The prompt cannot be empty: it must have at least one token.", param="prompt")
        if not set(map(type, ids)) <= {int}:
            raise ClientError("Prompt token ids must be integers.", param="prompt")
        for extreme in (min(ids), max(ids)):
            if not 0 <= extreme < self._vocab_size:
                raise ClientError(f"Token id {extreme} is out of vocabulary", param="prompt", value=extreme)
        return ids

    def _max_tokens(self, num_prompt: int, params: SamplingParams) -> int:
        limit, wanted = self._max_length, params.max_tokens
        context = f"This model's maximum context length is {limit} tokens. However, "
        if num_prompt > limit:
            raise ClientError(
                f"{context}your prompt contains {num_prompt} input tokens, which exceeds this limit even without any "
                "output tokens. Please reduce the length of the input prompt.",
                param="input_tokens",
                value=num_prompt,
            )
        if wanted is not None and wanted > limit and not self._clamp:
            raise ClientError(
                f"max_tokens={wanted} cannot be greater than max_model_len={limit}. Please request fewer output tokens.",
                param="max_tokens",
                value=wanted,
            )
        room = limit - num_prompt
        if wanted is not None and wanted <= room:
            return wanted
        if room and (wanted is None or self._clamp):
            return room
        wanted = wanted or 1
        raise ClientError(
            f"{context}you requested {wanted} output tokens and your prompt contains {num_prompt} input tokens, for a total "
            f"of {num_prompt + wanted} tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens.",
            param="input_tokens",
            value=num_prompt,
        )

    def _check_params(self, params: SamplingParams) -> None:
        self._check_logprobs("logprobs", "sample", params.logprobs)
        self._check_logprobs("prompt_logprobs", "prompt", params.prompt_logprobs)
        self._check_vocabulary("logit_bias", params.logit_bias or ())
        self._check_vocabulary("allowed_token_ids", params.allowed_token_ids or ())
        self._check_vocabulary("stop_token_ids", params.stop_token_ids)
        _check_unicode("stop", params.stop)
        _check_unicode("bad_words", params.bad_words)

    def _check_logprobs(self, name: str, kind: str, wanted: int | None) -> None:
        allowed = self._vocab_size if self._max_logprobs == -1 else self._max_logprobs
        if wanted is not None and (self._vocab_size if wanted == -1 else wanted) > allowed:
            raise ClientError(
                f"Requested {kind} logprobs of {wanted}, which is greater than max allowed: {allowed}", param=name, value=wanted
            )

    def _check_vocabulary(self, name: str, ids: Iterable[int]) -> None:
        for index in ids:
            if type(index) is not int or not 0 <= index < self._vocab_size:
                raise ClientError(
                    f"{name} contains out-of-vocab token id {index}. The vocabulary has {self._vocab_size} tokens.",
                    param=name,
                    value=index,
                )

    def _bad_words(self, words: list[str]) -> list[list[int]]:
        """Each word as it is written at the start of a text and after a blank: other tokens, and both must be banned."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word.lstrip(), " " + word.lstrip()):
                ids = self._tokenizer.encode(text, add_special_tokens=False)
                if ids:
                    found[tuple(ids)] = None
        if len(found) > MAX_BAD_WORDS:
            raise ClientError(
                f"bad_words may make at most {MAX_BAD_WORDS} token sequences, got {len(found)}.", param="bad_words"
            )
        return [list(ids) for ids in found]


def _check_salt(salt: object) -> str | None:
    if salt is None:
        return None
    if not isinstance(salt, str) or not 0 < len(salt) <= MAX_SALT:
        raise ClientError(f"cache_salt must be a text of 1 to {MAX_SALT} characters.", param="cache_salt")
    _check_unicode("cache_salt", [salt])
    return salt


def _kv_transfer(params: SamplingParams, config: KVTransferConfig | None) -> KVTransferParams | None:
    """What `extra_args` wish, if anything."""
    name, extra = "kv_transfer_params", params.extra_args or {}
    if unknown := set(extra) - {name}:
        raise ClientError(f"extra_args has no {min(unknown)!r}: {name!r} is all that is known.", param="extra_args")
    try:
        wish = msgspec.convert(extra.get(name) or {}, KVTransferParams)
    except msgspec.ValidationError as e:
        raise ClientError(f"{name}: {e}", param=name) from e
    if not wish.do_remote_decode and not wish.do_remote_prefill:
        return None
    if config is None:
        raise ClientError(f"{name} are for servers with --kv-transfer-config, which this one has not.", param=name)
    if wish.do_remote_decode and (wish.do_remote_prefill or params.n > 1):
        raise ClientError(f"{name}: do_remote_decode goes neither with do_remote_prefill nor with n > 1.", param=name)
    if not (config.produces if wish.do_remote_decode else config.consumes):
        raise ClientError(f"{name}: this server is a {config.kv_role}.", param=name)
    if wish.do_remote_prefill and wish.remote_request_id is None:
        raise ClientError(f"{name}: do_remote_prefill goes with what the producer's answer says.", param=name)
    return wish


def _check_unicode(name: str, texts: Iterable[str]) -> None:
    """Refuse lone surrogates, which JSON can carry but neither the tokenizer nor the way to the core can."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ClientError(f"{name} is not valid Unicode: it has a lone surrogate.", param=name) from error
