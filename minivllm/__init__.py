"""minivllm: an OpenAI-compatible inference server for large language models. Public names load when first used."""

import importlib
from typing import TYPE_CHECKING, Any

from minivllm.version import __version__

if TYPE_CHECKING:
    from minivllm.config.engine_args import AsyncEngineArgs, EngineArgs
    from minivllm.engine.async_engine import AsyncLLMEngine
    from minivllm.engine.sync_engine import LLMEngine
    from minivllm.entrypoints.llm import LLM
    from minivllm.messages.output import CompletionOutput, Logprob, RequestOutput
    from minivllm.messages.pooling_params import PoolingParams
    from minivllm.messages.prompt import TextPrompt, TokensPrompt
    from minivllm.messages.sampling_params import SamplingParams
    from minivllm.messages.structured_outputs import StructuredOutputsParams

_HOMES = {
    "AsyncEngineArgs": "minivllm.config.engine_args",
    "AsyncLLMEngine": "minivllm.engine.async_engine",
    "CompletionOutput": "minivllm.messages.output",
    "EngineArgs": "minivllm.config.engine_args",
    "LLM": "minivllm.entrypoints.llm",
    "LLMEngine": "minivllm.engine.sync_engine",
    "Logprob": "minivllm.messages.output",
    "PoolingParams": "minivllm.messages.pooling_params",
    "RequestOutput": "minivllm.messages.output",
    "SamplingParams": "minivllm.messages.sampling_params",
    "StructuredOutputsParams": "minivllm.messages.structured_outputs",
    "TextPrompt": "minivllm.messages.prompt",
    "TokensPrompt": "minivllm.messages.prompt",
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "CompletionOutput",
    "EngineArgs",
    "LLMEngine",
    "Logprob",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
