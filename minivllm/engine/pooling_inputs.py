"""`PoolingInputs`: a text and pooling parameters → a valid `EngineRequest`. The part of `InputProcessor` for pooling models."""

from collections.abc import Mapping
from typing import Any

import msgspec

from minivllm.config.engine_config import EngineConfig
from minivllm.errors import ClientError
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.sampling_params import OutputKind, SamplingParams
from minivllm.text.tokenizer import Tokenizer

# A request that pools is one that generates nothing.
NO_SAMPLING = SamplingParams(max_tokens=0, detokenize=False, output_kind=OutputKind.FINAL_ONLY)
_TASKS = {"embed": ("embed", "token_embed"), "classify": ("classify",)}


class PoolingInputs:
    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, max_length: int):
        self._config = config.pooling
        self._name = config.model.served_model_names[0]
        self._tokenizer = tokenizer
        self._max_length = max_length

    def check(self, params: PoolingParams) -> PoolingParams:
        """Complete parameters; ClientError for what the model cannot do."""
        config = self._config
        if config is None:
            raise ClientError("The model does not support pooling: it generates text (see --runner).", param="model")
        tasks = _TASKS[config.task]
        task = params.task or config.task
        if task not in tasks:
            raise ClientError(f"Unsupported task: {task!r} Supported tasks: {tasks}", param="task", value=task)
        self._check_dimensions(task, params.dimensions)
        wanted = params.truncate_prompt_tokens
        if wanted is not None and wanted > self._max_length:
            raise ClientError(
                f"truncate_prompt_tokens value ({wanted}) is greater than max_model_len ({self._max_length}). "
                "Please, select a smaller truncation size.",
                param="truncate_prompt_tokens",
                value=wanted,
            )
        skip = task == "token_embed" or config.needs_all_tokens
        return msgspec.structs.replace(params, task=task, skip_reading_prefix_cache=skip)

    def limit(self, params: PoolingParams) -> int | None:
        """Tokens that a text may keep; None: it is not cut."""
        return self._max_length if params.truncate_prompt_tokens == -1 else params.truncate_prompt_tokens

    def tokenize(self, prompt: Mapping[str, Any], params: PoolingParams) -> tuple[list[int], int | None]:
        """Ids, cut where the parameters ask for it, and the first token of the second text of a pair."""
        text, second = prompt["prompt"], prompt.get("second")
        if self._config is not None and self._config.lower_case:
            text, second = text.lower(), second and second.lower()
        return self._tokenizer.encode_cut(
            text,
            second,
            limit=self.limit(params),
            side=params.truncation_side,
            add_special_tokens=prompt.get("add_special_tokens", True),
        )

    def cut(self, ids: list[int], params: PoolingParams) -> list[int]:
        limit = self.limit(params)
        if limit is None or len(ids) <= limit:
            return ids
        return ids[:limit] if params.truncation_side == "right" else ids[-limit:]

    def check_length(self, num_tokens: int, task: str) -> None:
        if num_tokens > self._max_length:
            purpose = "classification" if task == "classify" else "embedding generation"
            raise ClientError(
                f"This model's maximum context length is {self._max_length} tokens. However, you requested {num_tokens} tokens "
                f"in the input for {purpose}. Please reduce the length of the input.",
                param="input",
                value=num_tokens,
            )

    def _check_dimensions(self, task: str, wanted: int | None) -> None:
        config = self._config
        if wanted is None or config is None:
            return
        if config.task != "embed":
            raise ClientError(
                f"Task {task} only supports ['use_activation'] parameters, does not support ['dimensions'] parameters",
                param="dimensions",
            )
        if not config.is_matryoshka:
            raise ClientError(
                f'Model "{self._name}" does not support matryoshka representation, changing output dimensions will lead to '
                "poor results.",
                param="dimensions",
                value=wanted,
            )
        known = config.matryoshka_dimensions
        if known and wanted not in known:
            raise ClientError(
                f'Model "{self._name}" only supports {list(known)} matryoshka dimensions, use other output dimensions will '
                "lead to poor results.",
                param="dimensions",
                value=wanted,
            )
        if wanted > config.width:
            raise ClientError(f"dimensions must be at most {config.width}, got {wanted}.", param="dimensions", value=wanted)
