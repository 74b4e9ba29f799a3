"""What goes from the engine to the core: requests to add or abort, and method calls."""

from typing import Any

import msgspec

from minivllm.messages.kv_transfer import KVTransferParams
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.sampling_params import SamplingParams

# From here on, a request is background work: admitted when nothing else waits, and preempted first, by every policy.
BACKGROUND_PRIORITY = 1 << 62


class EngineRequest(msgspec.Struct, array_like=True):
    """One sequence to generate (n = 1 here: `engine.fanout` has divided larger n), or with `pooling_params` a text to pool.

    Validated; the core trusts it. A text to pool generates nothing: its max_tokens is 0.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams  # max_tokens is a number here, never None
    eos_token_ids: list[int]  # end generation unless ignore_eos; also banned while min_tokens is not reached
    bad_words_token_ids: list[list[int]]
    arrival_time: float  # time.monotonic(), which all processes of one machine share
    priority: int = 0  # lower runs first, with scheduling_policy = "priority"
    cache_salt: str | None = None
    pooling_params: PoolingParams | None = None
    token_type_start: int | None = None  # the first token of the second text of a pair
    kv_transfer: KVTransferParams | None = None  # one of its two wishes is True
    data_parallel_rank: int = 0  # the core that it goes to, where there are several: the balancer sets it


class AddRequests(msgspec.Struct, array_like=True, tag=True):
    requests: list[EngineRequest]
    client: int = 0  # the API process whose they are


class AbortRequests(msgspec.Struct, array_like=True, tag=True):
    request_ids: list[str]


class CallMethod(msgspec.Struct, array_like=True, tag=True):
    """Call a `@remote` method of the core by name; answered by a `CallReply` to this client, with the same `call_id`."""

    call_id: int
    method: str
    args: list[Any]
    client: int = 0


CoreInput = AddRequests | AbortRequests | CallMethod
