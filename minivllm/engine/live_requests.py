"""`LiveRequest`: a user's request while it runs, as `GET /v1/requests` shows it. Made by `AsyncLLMEngine.live_requests`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minivllm.engine.request_stream import RequestStream
from minivllm.messages.stats import RequestState


@dataclass(slots=True)
class LiveRequest:
    """Times in milliseconds; those of phases that have not begun are None. Counts are over all its choices."""

    id: str
    state: str  # "waiting", "prefill" or "decode"
    waits_for: str | None  # "slot", "kv_cache", "step_tokens", "grammar" or "kv_transfer"
    num_choices: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_preemptions: int
    age_ms: float
    queue_ms: float
    prefill_ms: float | None
    decode_ms: float | None


def live_request(stream: RequestStream, states: Sequence[RequestState], now: float) -> LiveRequest:
    """`states`: of those of its choices that the core still knows. `now`: time.monotonic()."""
    arrived, first_token = stream.metrics.arrival_time, stream.metrics.first_token_time
    scheduled = min((state.scheduled_time for state in states if state.scheduled_time), default=None)
    scheduled = stream.metrics.first_scheduled_time or scheduled
    waiting = [state for state in states if not state.running]
    if len(waiting) == len(states) and (waiting or scheduled is None):
        phase = "waiting"
    else:
        phase = "prefill" if first_token is None else "decode"
    return LiveRequest(
        id=stream.request_id,
        state=phase,
        waits_for=waiting[0].waits_for if waiting else None,
        num_choices=len(stream.choices),
        num_prompt_tokens=len(stream.request.prompt_token_ids),
        num_computed_tokens=sum(state.num_computed_tokens for state in states),
        num_cached_tokens=max((state.num_cached_tokens for state in states), default=stream.num_cached_tokens),
        num_output_tokens=sum(choice.num_tokens for choice in stream.choices),
        num_preemptions=sum(state.num_preemptions for state in states),
        age_ms=_ms(now - arrived),
        queue_ms=_ms((scheduled or now) - arrived),
        prefill_ms=None if scheduled is None else _ms((first_token or now) - scheduled),
        decode_ms=None if first_token is None else _ms(now - first_token),
    )


def live_requests(
    streams: Mapping[RequestStream, Sequence[str]], states: Sequence[RequestState], now: float
) -> list[LiveRequest]:
    """Oldest first. `streams`: with the core's ids of their choices."""
    by_id = {state.request_id: state for state in states}
    return [live_request(stream, [by_id[key] for key in ids if key in by_id], now) for stream, ids in streams.items()]


def _ms(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1000, 1)
