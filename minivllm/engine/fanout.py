"""n > 1: one user request becomes n requests of the core. Called by `output_processor`."""

import msgspec

from minivllm.messages.request import EngineRequest


def divide(request: EngineRequest) -> list[EngineRequest]:
    """The sequences of a request, in the order of their index. The i-th samples with seed + i, if there is a seed.

    Prompt logprobs are the same for all, so only the first computes them.
    """
    params = request.sampling_params
    if params.n == 1:
        return [request]
    children = []
    for index in range(params.n):
        own = msgspec.structs.replace(
            params,
            n=1,
            seed=None if params.seed is None else _next_seed(params.seed, index),
            prompt_logprobs=params.prompt_logprobs if index == 0 else None,
        )
        children.append(msgspec.structs.replace(request, request_id=f"{request.request_id}-{index}", sampling_params=own))
    return children


def _next_seed(seed: int, index: int) -> int:
    """seed + index in 64 bits; the seed -1 would mean "none", so it is passed over."""
    total = (seed + index + 2**63) % 2**64 - 2**63
    return total if total != -1 else 2**63 - 1
