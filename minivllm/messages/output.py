"""What comes back from the core (`CoreOutput`), and what users get (`RequestOutput`)."""

import enum
from dataclasses import dataclass, field
from typing import Any

import msgspec

from minivllm.messages.pooling_output import Pooled
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.stats import SchedulerStats
from minivllm.messages.step import TokenLogprobs


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


class TokenOutput(msgspec.Struct, array_like=True):
    """What one step brought for one request."""

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop token id, where one of `stop_token_ids` ended it
    error: str | None = None  # with finish_reason ERROR
    error_param: str | None = None  # the field that the user must change; None: the error is ours
    grammar_ended: bool = False  # with finish_reason STOP: its grammar can go no further, and the last token is text
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache at first admission
    num_preemptions: int = 0
    scheduled_time: float = 0.0  # time.monotonic() of the first step it was in
    pooled: Pooled | None = None
    kv_transfer_params: dict[str, Any] | None = None  # with a finish_reason: by which another engine gets the prompt's blocks


class TokenOutputs(msgspec.Struct, array_like=True, tag=True):
    """The outputs of one step, and the figures after it."""

    outputs: list[TokenOutput]
    stats: SchedulerStats | None
    time: float  # time.monotonic() when the step ended
    engine: int = 0  # the core that it comes from; set by whoever hears several


class CallReply(msgspec.Struct, array_like=True, tag=True):
    call_id: int
    result: object = None
    error: str | None = None


class EngineReady(msgspec.Struct, array_like=True, tag=True):
    """First message of a core: it can serve. Facts found at run time travel here, never into the config."""

    num_blocks: int
    block_size: int
    max_model_len: int
    pid: int


class EngineDead(msgspec.Struct, array_like=True, tag=True):
    """Last message of a core that fails; `message` is one line for the user, `is_config` marks a start-up ConfigError."""

    message: str
    is_config: bool = False


CoreOutput = TokenOutputs | CallReply | EngineReady | EngineDead


class Logprob(msgspec.Struct):
    """One token's log probability, as users see it."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One of the n answers of a request. With `OutputKind.DELTA`, text, token_ids and logprobs hold only what is new."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None  # one dict a token; the chosen token is its first key
    finish_reason: str | None = None  # "stop", "length", "abort", "error", "timeout"
    stop_reason: int | str | None = None  # the stop token id or stop string that ended it; None for EOS

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """time.monotonic() stamps in seconds."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None


@dataclass(slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None  # first entry None: nothing precedes it
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    kv_transfer_params: dict[str, Any] | None = None  # for the engine that is to go on, if that was asked for


__all__ = [
    "CallReply",
    "CompletionOutput",
    "CoreOutput",
    "EngineDead",
    "EngineReady",
    "FinishReason",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "TokenOutput",
    "TokenOutputs",
]
